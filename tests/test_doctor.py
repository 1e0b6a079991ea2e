"""The loop doctor: bad input gets a clear finding, and nothing that a loop does gets out of it."""

import json
import sys
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.doctor import Owned, Problem, examine, problems
from course_lib.doctor.main import main


def right(model, optimizer, loss_fn, batches, accumulation_steps):
    """Shares of the rows, a flushed tail."""
    batches = list(batches)
    for start in range(0, len(batches), accumulation_steps):
        window = batches[start : start + accumulation_steps]
        rows = sum(len(y) for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) * (len(y) / rows)).backward()
        optimizer.step()


def only_forward(model, optimizer, loss_fn, batches, accumulation_steps):
    for x, y in batches:
        loss_fn(model(x), y)


def never_steps(model, optimizer, loss_fn, batches, accumulation_steps):
    for x, y in batches:
        loss_fn(model(x), y).backward()


def raises_inside(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (x, y) in enumerate(batches):
        loss_fn(model(x), y).backward()
        if i == 5:
            raise RuntimeError("no more")


def does_nothing(model, optimizer, loss_fn, batches, accumulation_steps):
    pass


def returns_early(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i == accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()
            return


def never_ends(model, optimizer, loss_fn, batches, accumulation_steps):
    while True:
        try:
            pass
        except BaseException:
            pass


def replaces_parameters(model, optimizer, loss_fn, batches, accumulation_steps):
    for group in optimizer.param_groups:
        group["params"] = [nn.Parameter(p.detach().clone()) for p in group["params"]]
    right(model, optimizer, loss_fn, batches, accumulation_steps)


def without_grad(model, optimizer, loss_fn, batches, accumulation_steps):
    with torch.no_grad():
        for i, (x, y) in enumerate(batches, 1):
            loss_fn(model(x), y)
            if i % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


def makes_nan(model, optimizer, loss_fn, batches, accumulation_steps):
    right(model, optimizer, lambda output, target: loss_fn(output, target) * float("nan"), batches, accumulation_steps)


def exits(model, optimizer, loss_fn, batches, accumulation_steps):
    sys.exit(3)


def interrupts(model, optimizer, loss_fn, batches, accumulation_steps):
    raise KeyboardInterrupt


def elsewhere(model, optimizer, loss_fn, batches, accumulation_steps):
    thread = threading.Thread(target=right, args=(model, optimizer, loss_fn, batches, accumulation_steps))
    thread.start()
    thread.join()


def casts(model, optimizer, loss_fn, batches, accumulation_steps):
    model.float()
    right(model, optimizer, loss_fn, [(x.float(), y.float()) for x, y in batches], accumulation_steps)


def yields(model, optimizer, loss_fn, batches, accumulation_steps):
    yield right(model, optimizer, loss_fn, batches, accumulation_steps)


def asks(model, optimizer, loss_fn, batches, accumulation_steps):
    input("how many? ")


@pytest.mark.parametrize(
    "loop, name",
    [
        (only_forward, "no backward"),
        (never_steps, "no update"),
        (raises_inside, "raised"),
        (does_nothing, "nothing went forward"),
        (returns_early, "data skipped"),
        (replaces_parameters, "parameters never updated"),
        (without_grad, "no gradient"),
        (makes_nan, "not finite"),
        (exits, "raised"),
        (interrupts, "raised"),
        (elsewhere, "runs in another thread"),
        (casts, "model changed"),
        (yields, "generator"),
        (asks, "asks for input"),
        (lambda only: None, "wrong signature"),
        (print, "nothing went forward"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_loop_that_goes_astray_gets_a_finding(loop, name):
    report = examine(loop)
    assert name in report.names, report
    assert not report.ok
    json.loads(report.to_json())
    assert name in str(report) and name in report._repr_html_()


def test_an_endless_loop_ends_at_the_time_limit():
    start = time.monotonic()
    assert examine(never_ends, time_limit=0.5).names == ("time limit",)
    assert time.monotonic() - start < 5


def test_a_line_of_the_loop_is_quoted_where_it_raised():
    report = examine(raises_inside)
    assert 'raise RuntimeError("no more")' in report.diagnoses[0].evidence


def test_what_a_loop_replaces_in_torch_is_put_back():
    def vandal(model, optimizer, loss_fn, batches, accumulation_steps):
        torch.cat = torch.equal = torch.autograd.backward = None
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float16)

    before = torch.cat, torch.equal, torch.autograd.backward, nn.Module.zero_grad, torch.optim.Optimizer.zero_grad
    assert not examine(vandal).ok
    assert before == (torch.cat, torch.equal, torch.autograd.backward, nn.Module.zero_grad, torch.optim.Optimizer.zero_grad)
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    assert examine(right).ok


def test_an_examination_leaves_no_trace_behind():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    examine(right)
    from torch.nn.modules import module
    from torch.optim import optimizer

    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
    assert not module._global_forward_hooks and not module._global_forward_pre_hooks
    assert not optimizer._global_optimizer_pre_hooks and not optimizer._global_optimizer_post_hooks


def test_what_a_loop_prints_is_kept_short():
    def loud(model, optimizer, loss_fn, batches, accumulation_steps):
        print("x" * 10**6)
        right(model, optimizer, loss_fn, batches, accumulation_steps)

    report = examine(loud)
    assert report.ok and len(report.notes[0]) < 300


# -- problems ------------------------------------------------------------------------------------------------------


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 1, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).abs()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(self.b(torch.tanh(self.a(x))))


def _rows(sizes=(4, 4, 4, 2, 4, 4), inputs=None):
    draw = torch.Generator().manual_seed(0)
    make = inputs or (lambda n: torch.randn(n, 5, generator=draw))
    return [(make(n), torch.randn(n, 1, generator=draw)) for n in sizes]


def _frozen():
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1))
    model[0].requires_grad_(False)
    return model


def _sparse():
    return nn.Sequential(nn.EmbeddingBag(20, 5, sparse=True, mode="sum"), nn.Linear(5, 1))


MODELS = {
    "tied": (Tied, _rows()),
    "frozen": (_frozen, _rows()),
    "complex": (Complex, _rows()),
    "sparse": (_sparse, _rows(inputs=lambda n: torch.arange(6 * n).reshape(n, 6) % 20)),
    "dropout": (lambda: nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 1)), _rows()),
    "one batch": (Tied, _rows((4,))),
    "single rows": (Tied, _rows((1,) * 9)),
}


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_right_loop_on_your_own_model_gets_silence(name, steps):
    make, batches = MODELS[name]
    report = examine(right, steps, model=make(), loss_fn=F.mse_loss, batches=batches)
    assert report.ok, report
    assert all(window.right for window in report.windows) and report.windows


@pytest.mark.parametrize("name", [name for name in MODELS if name != "one batch"])
def test_a_wrong_loop_on_your_own_model_is_named(name):
    def undivided(model, optimizer, loss_fn, batches, accumulation_steps):
        right(model, optimizer, lambda output, target: 3 * loss_fn(output, target), batches, accumulation_steps)

    make, batches = MODELS[name]
    report = examine(undivided, 3, model=make(), loss_fn=F.mse_loss, batches=batches)
    assert report.names == ("not divided",), report


def test_a_token_weighted_loss_of_your_own_is_understood():
    draw = torch.Generator().manual_seed(0)
    batches = []
    for length in (2, 9, 5, 7):
        tokens = torch.randint(0, 11, (3, 9), generator=draw)
        targets = tokens.roll(-1, 1).clone()
        targets[:, length:] = -100
        batches.append((tokens, targets))

    def by_micro_batches(model, optimizer, loss_fn, batches, accumulation_steps):
        for start in range(0, len(batches), accumulation_steps):
            optimizer.zero_grad()
            for x, y in batches[start : start + accumulation_steps]:
                (loss_fn(model(x), y) / accumulation_steps).backward()
            optimizer.step()

    report = examine(by_micro_batches, 2, model=problems.TinyLM(), loss_fn=problems.token_mean, batches=batches)
    assert report.names == ("mean of means",)
    needed = report.windows[0].needed
    assert needed[0] == pytest.approx(2 / 11, rel=1e-3) and needed[1] == pytest.approx(9 / 11, rel=1e-3)


@pytest.mark.parametrize("model", [nn.Tanh(), nn.Linear(5, 1).requires_grad_(False)], ids=["none", "all frozen"])
def test_a_model_with_nothing_to_train_is_said_to_have_nothing(model):
    report = examine(right, model=model, loss_fn=F.mse_loss, batches=_rows())
    assert report.names == ("no trainable parameters",)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (dict(accumulation_steps=0), "accumulation_steps"),
        (dict(accumulation_steps=2.5), "accumulation_steps"),
        (dict(accumulation_steps=True), "accumulation_steps"),
        (dict(sizes=[]), "sizes"),
        (dict(sizes=[4, 0]), "size"),
        (dict(epochs=0), "epochs"),
        (dict(model=nn.Linear(5, 1)), "together"),
        (dict(model=nn.Linear(5, 1), loss_fn=F.mse_loss, batches=[]), "empty"),
        (dict(model=3, loss_fn=F.mse_loss, batches=[1]), "module"),
    ],
)
def test_arguments_that_make_no_problem_are_refused_with_a_sentence(arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        examine(right, **arguments)


def test_a_call_in_place_of_a_function_is_explained():
    with pytest.raises(TypeError, match="brackets"):
        examine(3)


# -- other ways to hand a loop over --------------------------------------------------------------------------------


def test_a_loop_that_owns_its_model():
    def owner():
        model = nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = _rows()
        return Owned(model, optimizer, F.mse_loss, batches, lambda: never_steps(model, optimizer, F.mse_loss, batches, 2))

    assert examine(owner, 2).names == ("no update",)


OWN = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

K = 4

def parts(rows=160):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    data = TensorDataset(torch.randn(rows, 10), torch.randint(0, 3, (rows,)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), DataLoader(data, batch_size=8, shuffle=True)

def right(rows=160, divisor=K, epochs=3, start=1, flush=False, clear=False):
    model, optimizer, loader = parts(rows)
    for _ in range(epochs):
        for i, (x, y) in enumerate(loader, start):
            if clear:
                optimizer.zero_grad()
            (F.cross_entropy(model(x), y) / divisor).backward()
            if i % K == 0 or flush and i == len(loader):
                optimizer.step()
                if not clear:
                    optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for x, y in loader:
                F.cross_entropy(model(x), y)
        model.train()

def train(): right()
def undivided(): right(divisor=1)
def twice(): right(divisor=16)
def tail(): right(rows=176, flush=True)
def early(): right(start=0)
def clears(): right(clear=True)
def for_ever(): right(epochs=10**9)
def breaks(): parts()[0](3)
"""


@pytest.mark.parametrize(
    "function, name",
    [
        ("train", None), ("for_ever", None), ("undivided", "not divided"), ("twice", "divided twice"),
        ("tail", "tail too small"), ("early", "wrong window"), ("clears", "cleared too early"), ("breaks", "raised"),
    ],
)  # fmt: skip
def test_a_script_that_makes_its_own_model_and_data_is_examined_as_it_is(tmp_path, capsys, function, name):
    file = tmp_path / f"script_{function}.py"
    file.write_text(OWN)
    code = main([f"{file}:{function}", "--json"])
    report = json.loads(capsys.readouterr().out)
    names = [one["name"] for one in report["diagnoses"]]
    assert (code, names) == ((0, []) if name is None else (1, [name])), report
    assert function == "breaks" or report["accumulation_steps"] == 4


def test_an_adapter_calls_a_loop_in_its_own_way():
    class Trainer:
        def __init__(self, net, data, every):
            self.net, self.data, self.every = net, data, every

        def fit(self, optimizer, loss):
            right(self.net, optimizer, loss, self.data, self.every)

    def adapter(loop, parts):
        loop(parts.model, parts.batches, parts.accumulation_steps).fit(parts.optimizer, parts.loss_fn)

    assert examine(Trainer, adapter=adapter).ok


def test_a_problem_of_your_own():
    problem = Problem(
        model=lambda: problems.network(3, 16),
        batches=lambda epoch: problems.regression([2, 3, 4], 3, seed=epoch).batches(epoch),
        accumulation_steps=3,
    )
    report = examine(right, problem=problem)
    assert report.ok and report.windows[0].needed == pytest.approx((2 / 9, 3 / 9, 4 / 9))


# -- the command ---------------------------------------------------------------------------------------------------

SCRIPT = '''
def train(model, optimizer, loss_fn, batches, accumulation_steps):
    for i, (x, y) in enumerate(batches, 1):
        loss_fn(model(x), y).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
'''


def test_the_command_examines_a_function_in_a_file(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(SCRIPT)
    assert main([f"{file}:train", "-k", "2", "--sizes", "4,4,4,4"]) == 1
    assert "not divided" in capsys.readouterr().out
    assert main([f"{file}:train", "--json", "-k", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


@pytest.mark.parametrize(
    "text, function, words",
    [
        ("def train(:", "train", "line 1"),
        ("import nowhere_at_all", "train", "nowhere_at_all"),
        ("def other(): pass", "train", "other"),
        ("import sys; sys.exit(1)", "train", "SystemExit"),
    ],
)
def test_a_file_that_cannot_be_used_gets_one_sentence(tmp_path, capsys, text, function, words):
    file = tmp_path / "broken.py"
    file.write_text(text)
    assert main([f"{file}:{function}"]) == 2
    assert words in capsys.readouterr().err


def test_a_missing_file_gets_one_sentence(capsys):
    assert main(["nowhere.py:train"]) == 2
    assert "no file" in capsys.readouterr().err
