"""Wrong and unusual answers for version 2 of notebook 05."""

from contextlib import contextmanager, nullcontext

import torch

from .answers05 import replayed

# -- 05.4 wrong --------------------------------------------------------------------------------------------


def as_it_is(segment, *inputs):
    return lambda *args, **kwargs: segment(*args, **kwargs)


def _twice(segment, first, again):
    """A function whose first call runs first(call) and whose later ones run again(call)."""
    calls = 0

    def run(*args, **kwargs):
        nonlocal calls
        calls += 1
        return (first if calls == 1 else again)(lambda: segment(*args, **kwargs))

    return run


def _cast():
    on, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return lambda: torch.autocast("cpu", dtype=dtype, enabled=on)


def _plain(call):
    return call()


def not_put_back(segment, *inputs):
    state, cast = torch.get_rng_state(), _cast()

    def again(call):
        torch.set_rng_state(state)
        with cast():
            return call()

    return _twice(segment, _plain, again)


def put_back_too_far(segment, *inputs):
    state, cast = torch.get_rng_state(), _cast()

    def again(call):
        torch.set_rng_state(state)
        with cast():
            result = call()
        torch.set_rng_state(state)
        return result

    return _twice(segment, _plain, again)


def own_seed(segment, *inputs):
    cast = _cast()

    def both(call):
        with torch.random.fork_rng([]), cast():
            torch.manual_seed(0)
            return call()

    return _twice(segment, both, both)


def forks_only(segment, *inputs):
    cast = _cast()

    def again(call):
        with torch.random.fork_rng([]), cast():
            return call()

    return _twice(segment, _plain, again)


def notes_too_late(segment, *inputs):
    cast, states = _cast(), []

    def first(call):
        result = call()
        states.append(torch.get_rng_state())
        return result

    def again(call):
        with torch.random.fork_rng([]), cast():
            torch.set_rng_state(states[0])
            return call()

    return _twice(segment, first, again)


def _with_state(segment, around):
    state = torch.get_rng_state()

    def again(call):
        with torch.random.fork_rng([]), around():
            torch.set_rng_state(state)
            return call()

    return _twice(segment, _plain, again)


def no_autocast(segment, *inputs):
    return _with_state(segment, nullcontext)


def always_bfloat16(segment, *inputs):
    on = torch.is_autocast_enabled("cpu")
    return _with_state(segment, lambda: torch.autocast("cpu", dtype=torch.bfloat16, enabled=on))


def never_switches_off(segment, *inputs):
    on, cast = torch.is_autocast_enabled("cpu"), _cast()
    return _with_state(segment, cast if on else nullcontext)


def gives_the_first_again(segment, *inputs):
    results = []

    def run(*args, **kwargs):
        if not results:
            results.append(segment(*args, **kwargs))
        return results[0]

    return run


def not_after_an_error(segment, *inputs):
    state, cast = torch.get_rng_state(), _cast()

    def again(call):
        outside = torch.get_rng_state()
        torch.set_rng_state(state)
        with cast():
            result = call()
        torch.set_rng_state(outside)
        return result

    return _twice(segment, _plain, again)


def only_one_more(segment, *inputs):
    states, cast = [torch.get_rng_state()], _cast()

    def again(call):
        with torch.random.fork_rng([]), cast():
            if states:
                torch.set_rng_state(states.pop())
            return call()

    return _twice(segment, _plain, again)


def drops_keywords(segment, *inputs):
    run = replayed(lambda *args: segment(*args), *inputs)
    return lambda *args, **kwargs: run(*args)


def calls_it(segment, *inputs):
    return segment(*inputs)


def returns_once(segment, *inputs):
    def again(call):
        _with_state(segment, _cast())
        call()

    return _twice(segment, _plain, again)


def uses_the_first_inputs(segment, *inputs):
    run = replayed(segment, *inputs)
    return lambda *args, **kwargs: run(*inputs, **kwargs)


# -- 05.4 unusual ------------------------------------------------------------------------------------------


class Replayed:
    def __init__(self, segment, *inputs):
        self.segment, self.state, self.cast = segment, None, _cast()

    def __call__(self, *args, **kwargs):
        if self.state is None:
            self.state = torch.get_rng_state()
            return self.segment(*args, **kwargs)
        with torch.random.fork_rng([]), self.cast():
            torch.set_rng_state(self.state)
            return self.segment(*args, **kwargs)


def with_a_generator(segment, *inputs):
    state, cast, calls = torch.get_rng_state(), _cast(), []

    @contextmanager
    def world():
        outside = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            with cast():
                yield
        finally:
            torch.set_rng_state(outside)

    def run(*args, **kwargs):
        calls.append(1)
        with world() if len(calls) > 1 else nullcontext():
            return segment(*args, **kwargs)

    return run


