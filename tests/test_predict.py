"""predict: to the byte against real runs, the rules of a CUDA device one by one, and one sentence for what cannot be predicted."""

import json
import resource
import sys
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.experiments.bench_predict import SETTINGS
from course_lib.experiments.named import GPTS, named
from course_lib.experiments.predict_main import main
from course_lib.measure import Meter, PredictError, Trace, predict
from course_lib.measure.predict import _metered_parts
from course_lib.measure.rules import ALLOCATOR_BLOCK

MIB = 2**20


@pytest.mark.parametrize("name", SETTINGS)
def test_a_prediction_is_the_measurement_to_the_byte(name):
    predicted, measured = predict(SETTINGS[name]), SETTINGS[name].measured()
    assert predicted.peak_bytes == measured.peak_bytes and predicted.end_bytes == measured.end_bytes
    assert predicted.peak_by_phase == measured.peak_by_phase
    assert predicted.peak_by_category == measured.peak_by_category


def encoder():
    return nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.GroupNorm(2, 8), nn.SiLU(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 4, 3), nn.AvgPool2d(2),
        nn.ConvTranspose2d(4, 4, 2), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(256, 3),
    )  # fmt: skip


def rows():
    return nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8), nn.GLU(), nn.Softmax(-1), nn.LayerNorm(4), nn.PReLU(), nn.GRU(4, 4))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("make, shape", [(encoder, (2, 6, 16)), (convolutions, (2, 3, 18, 18)), (rows, (2, 3, 8))])
def test_other_layers_are_predicted_to_the_byte_too(make, shape, bf16):
    def build():
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.RMSprop(model.parameters())

        def run():
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    out = model(torch.randn(shape))
                (out[0] if isinstance(out, tuple) else out).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        return model, optimizer, run

    model, optimizer, run = build()
    with Meter(model, optimizer, device="cpu") as meter:
        run()
    predicted = predict(build)
    assert predicted.peak_by_phase == meter.trace.peak_by_phase
    assert predicted.peak_by_category == meter.trace.peak_by_category


def test_a_function_that_makes_everything_inside_is_enough():
    def step():
        model = nn.Linear(100, 50)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 100)).sum().backward()
        optimizer.step()

    trace = predict(step)
    assert trace.source == "predicted" and trace.peak_by_category["parameters"] == 4 * (100 * 50 + 50)
    assert Trace.from_json(trace.to_json()).peak_bytes == trace.peak_bytes


def test_your_own_model_is_predicted_by_twins_and_stays_as_it_is():
    model = nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20), nn.Linear(20, 20))
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 20)).sum().backward()
    optimizer.step()
    before = [tensor.clone() for tensor in model.state_dict().values()]

    def step(model, optimizer):
        model(torch.randn(4, 20)).sum().backward()
        optimizer.step()

    predicted = predict(step, model=model, optimizer=optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values()))
    with Meter(model, optimizer, device="cpu") as meter:
        step(model, optimizer)
    assert predicted.peak_by_category == meter.trace.peak_by_category and predicted.baseline_bytes == meter.trace.baseline_bytes


def averaged(model, optimizer):
    averages = torch.optim.swa_utils.AveragedModel(model)
    return lambda: averages.update_parameters(model)


def scheduled(model, optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5).step


def moved(model, optimizer):
    model.double().float()
    return lambda: None


@pytest.mark.parametrize("beside", [averaged, scheduled, moved])
@pytest.mark.parametrize("optimizer", ["NAdam", "Adagrad", "Rprop", "SGD"])
def test_what_real_loops_do_beside_training_is_predicted_too(beside, optimizer):
    def step():
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        update = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
        after = beside(model, update)
        for _ in range(2):
            model(torch.randn(8, 16)).square().mean().backward()
            update.step()
            after()
            update.zero_grad()

    predicted = predict(step)
    measured, _ = _metered_parts(step, None)
    assert predicted.peak_by_phase == measured.peak_by_phase
    assert predicted.peak_by_category == measured.peak_by_category


def test_a_prediction_leaves_no_tensor_without_data_behind_in_the_courses_own_data():
    from course_lib.experiments import data

    data._digits.cache_clear()
    predict(lambda: nn.Linear(64, 10)(data.digits(8)[0]).sum().backward())
    assert data.digits(8)[0].sum().item() > 0


# -- big models, nothing allocated -------------------------------------------------------------------------------------


def test_gpt2_small_takes_at_most_five_cpu_seconds_and_allocates_nothing():
    """The numbers are those that were measured once by another meter: 10.545 GiB, and 6.320 GiB with checkpoints."""
    predict(named("gpt-tiny"))  # what is imported and cached at first use
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    trace = predict(named("gpt2-small"))
    assert time.process_time() - start <= 5
    per_block = predict(named("gpt2-small", checkpoint="per-block"))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert round(trace.peak_bytes / 2**30, 3) == 10.545 and round(per_block.peak_bytes / 2**30, 3) == 6.320
    assert trace.peak_by_phase["optimizer"] < 2.2 * 2**30
    assert grown * (1 if sys.platform == "darwin" else 1024) < 400 * MIB


def test_a_model_of_175_billion_parameters_is_predicted_without_memory():
    """One update of four of its blocks, here; all 96 of them are what bench_predict runs (10 CPU seconds)."""
    vocabulary, length, width, depth, heads = GPTS["gpt3-175b"]
    assert (depth * 12 * width**2 + (vocabulary + length) * width) / 1e9 == pytest.approx(174.6, abs=0.1)

    def build():
        from course_lib.experiments.models import GPT, next_token_loss

        model = GPT(vocabulary, length, width, 4, heads)
        optimizer = torch.optim.AdamW(model.parameters())

        def run():
            tokens = torch.randint(0, vocabulary, (1, length))
            next_token_loss(model(tokens), tokens).backward()
            optimizer.step()

        return model, optimizer, run

    trace = predict(build)
    numbers = trace.peak_by_category["parameters"] / 4
    assert numbers > 7.8e9 and trace.peak_bytes > 16 * numbers


# -- the rules of a CUDA device, one by one ----------------------------------------------------------------------------


def kept(forward, shape=(4, 1000), target="cuda", **autocast) -> int:
    """Bytes that are alive when backward begins, without the input (x needs a gradient, so that all is saved)."""

    def step():
        x = torch.ones(shape, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(autocast)):
            out = forward(x)
        out.backward(torch.ones_like(out))

    trace = predict(step, target=target)
    before = [record for record in trace.records if record.phase == "forward"][-1]
    return before.live_bytes - 4 * torch.Size(shape).numel()


def test_every_storage_is_rounded_up_to_512_bytes():
    trace = predict(lambda: (torch.ones(3, requires_grad=True) * torch.ones(3)).sum().backward(), target="cuda")
    assert all(record.live_bytes % ALLOCATOR_BLOCK == 0 for record in trace.records)
    assert trace.records[1].live_bytes == 512


def test_dropout_keeps_one_byte_for_each_number():
    numbers = 4 * 1024
    cuda, cpu = (kept(lambda x: F.dropout(x, 0.5), (4, 1024), target) for target in ("cuda", "cpu"))
    assert cuda == 4 * numbers + numbers  # the output, and a mask of booleans
    assert cpu == 4 * numbers + 4 * numbers  # the output, and a mask of floats


def test_dropout_that_does_nothing_keeps_nothing():
    off = kept(lambda x: F.dropout(x, 0.5, training=False) * 2)
    assert off == kept(lambda x: x * 2)


def test_attention_with_dropout_keeps_no_scores():
    shape = (2, 4, 64, 16)

    def attend(x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)

    scores = 2 * 4 * 64 * 64 * 4
    assert kept(attend, shape) < scores < kept(attend, shape, target="cpu")


@pytest.mark.parametrize("optimizer", ["adamw", "fused adamw"])
def test_optimizers_are_foreach_unless_they_are_fused(optimizer):
    step = named("mlp", optimizer=optimizer)
    by_loop, by_rule = predict(step), predict(step, target="cuda")
    ops = {record.op for record in by_rule.records if record.phase == "optimizer"}
    assert ("aten._foreach_addcdiv_" in ops) == (optimizer == "adamw")
    extra = by_rule.peak_by_phase["optimizer"] - by_loop.peak_by_phase["optimizer"]
    assert (extra > 200_000) == (optimizer == "adamw")  # temporaries of the size of all parameters, not of one


def test_under_autocast_norms_are_computed_in_fp32():
    def norm(x):
        return F.layer_norm(x.bfloat16() * 1, (1024,))

    cuda, cpu = (kept(norm, (4, 1024), target, low=True) for target in ("cuda", "cpu"))
    assert cuda - cpu >= 4 * 1024 * 4


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError, match="cpu, cuda"):
        predict(lambda: None, target="tpu")


# -- what cannot be predicted --------------------------------------------------------------------------------------------


def branches():
    x = torch.ones(3, requires_grad=True).sum()
    (x if x > 0 else -x).backward()


def reads():
    loss = torch.ones(3, requires_grad=True).sum()
    print(loss.item())


def masks():
    x = torch.ones(3, requires_grad=True)
    x[x > 0].sum().backward()


OUTSIDE = nn.Linear(3, 3)


@pytest.mark.parametrize(
    "step, sentence",
    [
        (branches, "looks at the numbers"),
        (reads, r"Leave out \.item\(\)"),
        (masks, "shape of a result depends on the numbers"),
        (lambda: OUTSIDE(torch.ones(3)).sum().backward(), "made outside of it"),
        (lambda: torch.ones(3), "never ran backward"),
        (lambda: [][0], "raised IndexError"),
        (lambda: torch.ones(3).numpy().sum(), "NumPy|raised"),
        (lambda: torch.ones(3, device="cuda", requires_grad=True).sum().backward(), "target='cuda'"),
    ],
)
def test_a_step_that_cannot_be_predicted_gets_one_sentence(step, sentence):
    with pytest.raises(PredictError, match=sentence) as caught:
        predict(step)
    assert "\n" not in str(caught.value)


def test_something_that_is_no_step_is_refused():
    with pytest.raises(TypeError, match="a function that trains a step"):
        predict(3)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_phases_categories_and_what_fits(capsys):
    assert main(["gpt-tiny", "--batch", "2"]) == 0
    text = capsys.readouterr().out
    for word in ("peak", "forward", "backward", "optimizer state", "parameters", "8 GiB", "141 GiB", "yes", "Not counted"):
        assert word in text


def test_the_command_says_what_is_largest_where_little_fits(capsys):
    assert main(["gpt2-small", "--target", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "Largest part: activations. What makes it smaller: checkpoint blocks" in text and "short" in text


def test_the_command_gives_json_and_takes_a_file_of_yours(capsys, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import torch\n\ndef step():\n    torch.nn.Linear(9, 9)(torch.ones(2, 9)).sum().backward()\n")
    assert main([f"{path}:step", "--json", "--target", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peak_by_category"]["parameters"] == 360 and found["fits"]["8 GiB"] is True


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["nope"], "no model 'nope'"),
        (["gpt-tiny", "--optimizer", "lion"], "no optimizer 'lion'"),
        (["gpt-tiny", "--batch", "0"], "batch is a whole number"),
        (["mlp", "--checkpoint", "per-block"], "no blocks"),
        (["resnet18", "--length", "5"], "no length"),
        (["missing.py:step"], "no file missing.py"),
        (["missing.py"], "FILE.py:FUNCTION"),
        (["gpt-tiny", "--target", "tpu"], "cpu, cuda"),
    ],
)
def test_the_command_answers_bad_arguments_in_one_sentence(arguments, sentence, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error and "Traceback" not in error and error.count("\n") == 1
