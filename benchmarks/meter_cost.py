"""What the Meter costs, against an empty dispatch mode, torch's MemTracker and the profiler.

    python benchmarks/meter_cost.py

One AdamW step of a GPT, in three sizes. Variants run in turn; the table gives the median of the ratios to the plain step
of the same round (process CPU time, one thread), and the added microseconds per operator.
"""

import statistics
import time
import warnings

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.experiments.models import GPT, next_token_loss
from course_lib.measure import Meter
from course_lib.measure.timing import quiet_malloc

SIZES = {  # name: (vocab, length, width, depth, heads), batch, rounds
    "tiniest": ((64, 16, 32, 4, 4), 2, 25),
    "tiny": ((64, 32, 64, 4, 4), 2, 25),
    "small": ((256, 64, 128, 4, 4), 8, 15),
    "medium": ((512, 128, 256, 6, 4), 16, 7),
}


class Empty(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Count(Empty):
    ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops += 1
        return func(*args, **(kwargs or {}))


def variants(model, optimizer, tracker):
    yield "plain", lambda step: step()
    yield "empty dispatch mode", lambda step: run(Empty(), step)
    yield "Meter", lambda step: run(Meter(model, optimizer), step)
    yield "profiler(profile_memory)", lambda step: run(
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True), step
    )
    yield "MemTracker", lambda step: (tracker.reset_mod_stats(), run(tracker, step))


def run(context, step):
    with context:
        step()


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    quiet_malloc()
    for name, (shape, batch, rounds) in SIZES.items():
        model = GPT(*shape)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        x = torch.randint(shape[0], (batch, shape[1]))

        def step():
            next_token_loss(model(x), x).backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        count = Count()
        run(count, step)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        times = {}
        for round_ in range(rounds + 1):
            for variant, call in variants(model, optimizer, tracker):
                start = time.process_time()
                call(step)
                if round_:  # the first round warms up
                    times.setdefault(variant, []).append(time.process_time() - start)
        plain = times.pop("plain")
        print(f"\n{name}: {count.ops} operators, plain step {statistics.median(plain) * 1e3:.1f} ms of CPU time")
        for variant, seconds in times.items():
            ratio = statistics.median(a / b for a, b in zip(seconds, plain))
            added = statistics.median(a - b for a, b in zip(seconds, plain)) / count.ops * 1e6
            print(f"  {variant:26} x{ratio:6.2f}   +{added:7.1f} us per operator")


if __name__ == "__main__":
    main()
