"""The exercise of notebook 00: one warm-up, to learn how check, hint and solution work."""

from fractions import Fraction

import torch

from .faults import Fault
from .registry import Exercise, Unusual, Wrong, register
from .want import want_number


def mean_of_all(sizes, means):
    return sum(n * mean for n, mean in zip(sizes, means)) / sum(sizes)


# each case tells the typical mistakes apart by its number
CASES = (([3, 1], [1.0, 5.0]), ([4, 2, 2], [0.5, 3.0, -1.0]), ([2, 2], [1.0, 4.0]), ([7], [2.5]))


def check_mean(answer):
    for sizes, means in CASES:
        what = f"mean_of_all({sizes}, {means})"
        got = want_number(answer.call(list(sizes), list(means)), what)
        total = sum(n * mean for n, mean in zip(sizes, means))
        if _close(got, total / sum(sizes)):
            continue
        told = f"{what} is {float(got):g}: that is"
        if _close(got, sum(means) / len(means)):
            sentence = f"A micro-batch of {min(sizes)} must not pull as hard as one of {max(sizes)}."
            raise Fault("mean of means", f"{told} the plain mean of the means. {sentence}")
        if _close(got, total):
            sentence = f"Divide it by the number of samples, {sum(sizes)}."
            raise Fault("not divided", f"{told} the sum over all samples. {sentence}")
        if _close(got, total / len(sizes)):
            sentence = f"Divide by the {sum(sizes)} samples, not by the {len(sizes)} micro-batches."
            raise Fault("divided by micro-batches", f"{told} too large. {sentence}")
        if _close(got, sum(means)):
            raise Fault("sum of means", f"{told} the sum of the means. The sizes must play a part.")
        sentence = "Add up all samples, then divide by how many there are."
        raise Fault("wrong mean", f"{what} is {float(got):g}, expected {total / sum(sizes):g}. {sentence}")


def _close(got, right):
    return abs(Fraction(got) - Fraction(right)) < Fraction(1, 10**6)


def plain_mean(sizes, means):
    return sum(means) / len(means)


def only_the_sum(sizes, means):
    return sum(n * mean for n, mean in zip(sizes, means))


def by_the_number_of_batches(sizes, means):
    return sum(n * mean for n, mean in zip(sizes, means)) / len(sizes)


def sum_of_means(sizes, means):
    return sum(means)


def whole_division(sizes, means):
    return sum(n * mean for n, mean in zip(sizes, means)) // sum(sizes)


def with_a_dot_product(sizes, means):
    shares = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    return shares @ torch.tensor(means, dtype=torch.float64)


def sample_by_sample(sizes, means):
    samples = [Fraction(mean) for n, mean in zip(sizes, means) for _ in range(n)]
    return sum(samples) / len(samples)


register(Exercise(
    id="00.1",
    title="Warm-up: the mean over all samples",
    prompt="Each micro-batch has a size and a mean loss. Return the mean loss over all samples.",
    reference=mean_of_all,
    hints=(
        "For equal sizes it is the mean of the means. What if one has 3 samples and another has 1?",
        "A mean is a sum divided by a count, so n * mean gives back the sum of one micro-batch.",
        "Add n * mean over zip(sizes, means), then divide by the number of all samples, sum(sizes).",
    ),
    checker=check_mean,
    wrong=(
        Wrong("mean of the means", plain_mean, "mean of means", "B16"),
        Wrong("only the sum", only_the_sum, "not divided", "B04"),
        Wrong("by the number of micro-batches", by_the_number_of_batches, "divided by micro-batches"),
        Wrong("sum of the means", sum_of_means, "sum of means"),
        Wrong("whole-number division", whole_division, "wrong mean"),
    ),
    unusual=(
        Unusual("dot product with shares, a 0-dim tensor", with_a_dot_product),
        Unusual("sample by sample, in exact fractions", sample_by_sample),
    ),
))  # fmt: skip
