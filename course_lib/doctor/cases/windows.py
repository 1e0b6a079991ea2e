"""Updates at the wrong place, and data that never reaches one."""


from ..problems import regression
from .case import Case, called, close, sizes
from .wrapper import Wrapper
from .wrapper import windows as chunks


def starts_at_zero(model, optimizer, loss_fn, batches, accumulation_steps):
    """The first update comes after one micro-batch."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def plus_one_too_many(model, optimizer, loss_fn, batches, accumulation_steps):
    """The counter starts at one, and the test adds one."""
    optimizer.zero_grad()
    for step, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def trains_on_boundaries_only(model, optimizer, loss_fn, batches, accumulation_steps):
    """Forward and backward stand under the boundary test: K = 100 makes epochs 100 times faster."""
    for i, (x, y) in enumerate(batches, 1):
        if i % accumulation_steps == 0:
            optimizer.zero_grad()
            (loss_fn(model(x), y) / accumulation_steps).backward()
            optimizer.step()


def ignores_the_option(model, optimizer, loss_fn, batches, accumulation_steps):
    """K is checked, printed, and not used."""
    assert accumulation_steps >= 1, f"accumulating over {accumulation_steps}"
    for x, y in batches:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()


def wipes_the_tail(model, optimizer, loss_fn, batches, accumulation_steps):
    """The clear at the start of an epoch throws an unfinished window away."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def leaks_the_tail(model, optimizer, loss_fn, batches, accumulation_steps):
    """The count starts again in each epoch, the gradients do not."""
    for i, (x, y) in enumerate(batches, 1):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def slices_with_forced_sync(model, optimizer, loss_fn, batches, accumulation_steps):
    """Each loader batch is cut into K slices; the wrapper syncs on every slice of the last one."""
    wrapper = Wrapper(optimizer, accumulation_steps)
    for x, y in wrapper.loader(batches):
        for part, target in zip(x.split(2), y.split(2)):
            wrapper.begin()
            wrapper.backward(loss_fn(model(part), target))
            wrapper.step()
            wrapper.zero_grad()


def floors_the_limit(model, optimizer, loss_fn, batches, accumulation_steps, epochs):
    """The limit counts whole windows, the loop steps for the tail, too."""
    limit, done = len(batches) // accumulation_steps * epochs, 0
    for _ in range(epochs):
        for window in chunks(batches, accumulation_steps):
            if done == limit:
                return
            optimizer.zero_grad()
            for x, y in window:
                (loss_fn(model(x), y) / len(window)).backward()
            optimizer.step()
            done += 1


def sorts_by_length(model, optimizer, loss_fn, batches, accumulation_steps):
    """A sampler of its own puts samples of like size together: the windows hold other samples."""
    batches = sorted(batches, key=lambda batch: float(batch[0].abs().sum()))
    for window in chunks(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


def _leak(report):
    window = report.windows[7]  # the first update of the second epoch
    assert close(sum(window.used) + sum(window.stale.values()), 15 / 8), (window.used, window.stale)


def _six_and_two_thirds(report):
    assert "6.6" in report.diagnoses[0].evidence or "6.80" in report.diagnoses[0].evidence, report.diagnoses[0].evidence
    assert report.counts["step"] == 20


CASES = (
    Case("B08", "boundary without +1", starts_at_zero, ("wrong window",), ("tail dropped",), options={"sizes": [4] * 16}, check=sizes(1, 4, 4, 4)),
    Case("B08 start=1", "boundary with +1 on a count from one", plus_one_too_many, ("wrong window",), ("tail dropped",),
         options={"sizes": [4] * 16}, check=sizes(3, 4, 4, 4)),
    Case("B09a", "only boundaries are trained on", trains_on_boundaries_only, ("data skipped",), ("tail dropped",),
         options={"sizes": [4] * 16}, check=called(backward=8, step=8)),
    Case("B09b", "K is not used", ignores_the_option, ("update every micro-batch",), options={"sizes": [4] * 16},
         check=called(step=32)),
    Case("B10", "the tail is wiped", wipes_the_tail, ("tail dropped",),
         options={"problem": regression([1] * 120, 32)}, check=called(step=6)),
    Case("B12", "the tail leaks", leaks_the_tail, ("tail leaks",), options={"problem": regression([2] * 63, 8)}, check=_leak),
    Case("B14", "epoch shorter than K", leaks_the_tail, ("no update",), options={"sizes": [4] * 3, "epochs": 5},
         check=called(step=0, backward=15)),
    Case("B14 flushed", "epoch shorter than K, stepped at its end", lambda model, optimizer, loss_fn, batches, k: _flush(
        model, optimizer, loss_fn, batches, k), options={"sizes": [4] * 3, "epochs": 5}, check=called(step=5)),
    Case("B15", "forced sync on the last loader batch", slices_with_forced_sync, ("forced update at the end",),
         options={"sizes": [8, 8], "epochs": 1}, check=called(step=5)),
    Case("B15 one batch", "forced sync, one loader batch", slices_with_forced_sync,
         ("update every micro-batch",), ("forced update at the end",), options={"sizes": [8], "epochs": 1}, check=called(step=4)),
    Case("B39", "floor in the limit, ceil in the loop", floors_the_limit, ("stops early",),
         options={"sizes": [4] * 5, "accumulation_steps": 2, "epochs": 10}, check=_six_and_two_thirds),
    Case("B51", "another order of the data", sorts_by_length, ("other micro-batches",)),
)  # fmt: skip


def _flush(model, optimizer, loss_fn, batches, accumulation_steps):
    for window in chunks(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            (loss_fn(model(x), y) / len(window)).backward()
        optimizer.step()


