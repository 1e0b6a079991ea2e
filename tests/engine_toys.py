"""A toy exercise on which the engine's tests try everything that an answer can do."""

import torch

from course_lib.exercises import judge, registry
from course_lib.exercises.registry import Exercise, Unusual, Wrong
from course_lib.exercises.want import want_close, want_tensor, want_true

ID = "90.1"


def mean(xs):
    total = torch.zeros(())
    for x in xs:
        total = total + x
    return total / len(xs)


def check_mean(answer):
    """Uses torch after the answer ran, so that a patched torch would show."""
    xs = torch.tensor([1.0, 2.0, 6.0])
    got = want_tensor(answer.call(xs, unchanged=(xs,)), "the result", shape=())
    want_close(got, torch.tensor(3.0), "the mean", "wrong mean", "divide the sum by how many there are.")
    want_true(torch.allclose(torch.ones(2), torch.ones(2)), "broken torch", "torch.allclose was patched")
    want_true(not torch.equal(torch.ones(2), torch.zeros(2)), "broken torch", "torch.equal was patched")
    weight = torch.ones(2, requires_grad=True)
    torch.add(weight, 1).sum().backward()
    want_true(weight.grad is not None, "broken torch", "backward was patched")


def toy(**changes):
    """An Exercise that asks for the mean, with some of its fields changed."""
    fields = {
        "id": ID,
        "title": "The mean",
        "prompt": "Write the mean of a tensor.",
        "reference": mean,
        "hints": ("Add first.", "Count second.", "Divide the sum by `len(xs)`."),
        "checker": check_mean,
        "wrong": (
            Wrong("sum", lambda xs: xs.sum(), "wrong mean"),
            Wrong("nothing", lambda xs: None, "returned nothing"),
            Wrong("float", lambda xs: 3.0, "wrong type"),
        ),
        "unusual": (Unusual("torch's own", lambda xs: xs.mean()),),
        "time_limit": 5.0,
    }
    return Exercise(**{**fields, **changes})


def remove():
    """Forget the toy and what the session knows about it."""
    registry._exercises.pop(ID, None)
    judge._passed.pop(ID, None)
    judge._hints_given.pop(ID, None)
