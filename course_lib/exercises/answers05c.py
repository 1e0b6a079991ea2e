"""Wrong and unusual answers for version 3 of notebook 05: each is the reference with one thing otherwise."""

import weakref
from contextlib import contextmanager, nullcontext, suppress

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from .answers05 import Enough, Recompute, replayed, tensors_in


def variant(
    world=True, stop=True, detach=True, pop=True, versions=True, recording=True, once=False, single=False,
    store=None,  # fmt: skip
):
    """A version 3; each flag leaves one thing out. store: a dict that the recomputed tensors go into."""

    def my_checkpoint(function, *args, **kwargs):
        tensors = tensors_in([args, kwargs])
        run = replayed(function, *tensors) if world else function
        before = [x._version for x in tensors]
        saved, found, done = 0, {} if store is None else store, False

        def pack(tensor):
            nonlocal saved
            saved += 1
            return saved - 1

        def keep(tensor):
            found[len(found)] = tensor.detach() if detach else tensor
            if stop and len(found) == saved:
                raise Enough

        def unpack(place):
            nonlocal done
            if place not in found and not (once and done):
                if versions and before != [x._version for x in tensors]:
                    raise RuntimeError("changed in place")
                found.clear()
                recording_again = torch.enable_grad() if recording else nullcontext()
                with suppress(Enough), recording_again, saved_tensors_hooks(keep, lambda nothing: None):
                    run(*args, **kwargs)
                done = True
            result = found[place]
            if single:
                found.clear()
            elif pop:
                del found[place]
            return result

        with saved_tensors_hooks(pack, unpack):
            return run(*args, **kwargs)

    return my_checkpoint


no_random = variant(world=False)
runs_to_the_end = variant(stop=False)
keeps_all = variant(pop=False)
keeps_graphs = variant(detach=False, pop=False)
in_a_global = variant(pop=False, store={})
not_recording = variant(recording=False)
no_versions = variant(versions=False)
only_once = variant(once=True)
for_each_tensor = variant(single=True)


def simple(change=lambda args: args, caught=True, early=0, hooked=True, backwards=False):
    """The same without most of the care, for mistakes that show at once."""

    def my_checkpoint(function, *args, **kwargs):
        run, saved, found = replayed(function, *tensors_in([args, kwargs])), 0, {}

        def pack(tensor):
            nonlocal saved
            saved += 1
            return saved - 1

        def keep(tensor):
            found[len(found)] = tensor.detach()
            if len(found) == saved - early:
                raise Enough

        def unpack(place):
            if not found:
                hooks = saved_tensors_hooks(keep, lambda nothing: None) if hooked else nullcontext()
                with suppress(Enough) if caught else nullcontext(), torch.enable_grad(), hooks:
                    run(*change(args), **kwargs)
            return found.pop(saved - 1 - place if backwards else place)

        with saved_tensors_hooks(pack, unpack):
            return run(*args, **kwargs)

    return my_checkpoint


on_constants = simple(lambda args: [x.detach() if isinstance(x, torch.Tensor) else x for x in args])
not_caught = simple(caught=False)
one_too_early = simple(early=1)
no_second_hooks = simple(hooked=False)
from_the_end = simple(backwards=True)
_counted = []


def one_count(function, *args, **kwargs):
    """Tickets are numbered through all calls, and what a second run finds from 0."""
    run, found = replayed(function, *tensors_in([args, kwargs])), {}

    def pack(tensor):
        _counted.append(None)
        return len(_counted) - 1

    def keep(tensor):
        found[len(found)] = tensor.detach()

    def unpack(place):
        if place not in found:
            with torch.enable_grad(), saved_tensors_hooks(keep, lambda nothing: None):
                run(*args, **kwargs)
        return found.pop(place)

    with saved_tensors_hooks(pack, unpack):
        return run(*args, **kwargs)


def saves_everything(function, *args, **kwargs):
    run = replayed(function, *tensors_in([args, kwargs]))
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        return run(*args, **kwargs)


def saves_copies(function, *args, **kwargs):
    with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor):
        return function(*args, **kwargs)


def drops_keywords(function, *args, **kwargs):
    first = variant()
    return first(lambda *args: function(*args), *args)


def keywords_of_first_run_only(function, *args, **kwargs):
    calls = []

    def run(*args):
        calls.append(1)
        return function(*args, **kwargs) if len(calls) == 1 else function(*args)

    return variant()(run, *args)


def nested_are_constants(function, *args, **kwargs):
    """Only tensors at the top level take part; those in lists and dicts are cut off."""

    def cut(thing):
        if isinstance(thing, (list, tuple)):
            return type(thing)(cut(part) for part in thing)
        if isinstance(thing, dict):
            return {key: cut(part) for key, part in thing.items()}
        return thing.detach() if isinstance(thing, torch.Tensor) else thing

    args = [arg if isinstance(arg, torch.Tensor) else cut(arg) for arg in args]
    return variant()(function, *args, **kwargs)


def by_version_2(function, *args, **kwargs):
    """The autograd.Function again: it sees only tensors that `apply` is given."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]

    def segment(*tensors):
        rest = iter(tensors)
        return function(*[next(rest) if isinstance(arg, torch.Tensor) else arg for arg in args], **kwargs)

    return Recompute.apply(replayed(segment, *tensors), *tensors)


def with_a_dummy(function, *args, **kwargs):
    """Version 2 with a tensor that requires a gradient for no other reason than to get one."""
    dummy = torch.zeros((), requires_grad=True)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]

    def segment(dummy, *tensors):
        rest = iter(tensors)
        given = [next(rest) if isinstance(arg, torch.Tensor) else arg for arg in args]
        return function(*given, **kwargs) + dummy * 0

    return Recompute.apply(replayed(segment, *tensors), dummy, *tensors)


def marks_all(function, *args, **kwargs):
    result = variant()(function, *args, **kwargs)
    for tensor in tensors_in(result):
        if not tensor.requires_grad:
            tensor.requires_grad_()
    return result


def in_forward(function, *args, **kwargs):
    run, found = replayed(function, *tensors_in([args, kwargs])), []

    def keep(tensor):
        found.append(tensor.detach())

    with saved_tensors_hooks(lambda tensor: 0, lambda _: found.pop(0)):
        output = run(*args, **kwargs)
    with saved_tensors_hooks(keep, lambda nothing: None):
        run(*args, **kwargs)
    return output


def leaves_hooks_on(function, *args, **kwargs):
    hooks = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    hooks.__enter__()
    return variant()(function, *args, **kwargs)


def without_a_graph(function, *args, **kwargs):
    with torch.no_grad():
        return function(*args, **kwargs)


def by_torch(function, *args, **kwargs):
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


def one_output_only(function, *args, **kwargs):
    result = variant()(function, *args, **kwargs)
    return result if isinstance(result, torch.Tensor) else tensors_in(result)[0]


# -- unusual -----------------------------------------------------------------------------------------------


class Place:
    """What autograd keeps instead of a tensor."""


class MyCheckpoint:
    """A class, with a weak reference to each place: tensors that nobody will ask for are not kept at all."""

    def __init__(self, function, args, kwargs):
        self.tensors = tensors_in([args, kwargs])
        self.run = replayed(function, *self.tensors)
        self.versions = [x._version for x in self.tensors]
        self.args, self.kwargs, self.places, self.found = args, kwargs, [], weakref.WeakKeyDictionary()

    def pack(self, tensor):
        place = Place()
        self.places.append(weakref.ref(place))
        return place

    def unpack(self, place):
        if place not in self.found:
            self.again()
        return self.found.pop(place)

    def again(self):
        for x, version in zip(self.tensors, self.versions):
            if x._version != version:
                raise ValueError("somebody wrote into an input")
        waiting = iter(self.places)
        left = len(self.places)

        def keep(tensor):
            nonlocal left
            place = next(waiting)()
            left -= 1
            if place is not None:
                self.found[place] = tensor.detach()
            if left == 0:
                raise Enough

        try:
            with torch.enable_grad(), saved_tensors_hooks(keep, lambda nothing: None):
                self.run(*self.args, **self.kwargs)
        except Enough:
            pass


def with_a_class(function, *args, **kwargs):
    state = MyCheckpoint(function, args, kwargs)
    with saved_tensors_hooks(state.pack, state.unpack):
        return state.run(*args, **kwargs)


@contextmanager
def checkpointed(again, unchanged):
    """A context, in the manner of torch.autograd.graph.save_on_cpu: what is saved in it is computed again."""
    count, found = 0, []

    def pack(tensor):
        nonlocal count
        count += 1
        return count

    def unpack(number):
        if not found or found[number - 1] is None:
            unchanged()
            found.clear()

            def keep(tensor):
                found.append(tensor.detach())
                if len(found) == count:
                    raise Enough

            with saved_tensors_hooks(keep, lambda nothing: None), torch.enable_grad():
                try:
                    again()
                except Enough:
                    pass
        tensor, found[number - 1] = found[number - 1], None
        return tensor

    with saved_tensors_hooks(pack, unpack):
        yield


def with_a_context(function, *args, **kwargs):
    tensors = tensors_in([args, kwargs])
    versions = [x._version for x in tensors]
    run = replayed(function, *tensors)

    def unchanged():
        assert versions == [x._version for x in tensors], "changed in place"

    with checkpointed(lambda: run(*args, **kwargs), unchanged):
        return run(*args, **kwargs)


class _Hold(torch.autograd.Function):
    """Nothing but a place in the graph for some tensors: autograd notices changes, and outer hooks see "
    "them."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None, *(None for _ in ctx.saved_tensors)


def inputs_in_the_graph(function, *args, **kwargs):
    """The inputs rest in the graph, not in a closure: inside another checkpoint they are recomputed as "
    "well."""
    tensors = tensors_in([args, kwargs])
    recording, anchor = torch.is_grad_enabled(), torch.zeros((), requires_grad=True)
    node = _Hold.apply(anchor, *tensors).grad_fn if recording else None
    shape = _without_tensors([args, kwargs])
    run, saved, found = replayed(function, *tensors), 0, {}
    del tensors

    def pack(tensor):
        nonlocal saved
        saved += 1
        return saved - 1

    def keep(tensor):
        found[len(found)] = tensor.detach()
        if len(found) == saved:
            raise Enough

    def unpack(place):
        if place not in found:
            found.clear()
            args, kwargs = _with_tensors(shape, iter(node.saved_tensors))
            with suppress(Enough), torch.enable_grad(), saved_tensors_hooks(keep, lambda nothing: None):
                run(*args, **kwargs)
        return found.pop(place)

    with saved_tensors_hooks(pack, unpack):
        return run(*args, **kwargs)


def _without_tensors(thing):
    if isinstance(thing, torch.Tensor):
        return Place
    if isinstance(thing, dict):
        return {key: _without_tensors(part) for key, part in thing.items()}
    return type(thing)(map(_without_tensors, thing)) if isinstance(thing, (list, tuple)) else thing


def _with_tensors(shape, tensors):
    if shape is Place:
        return next(tensors)
    if isinstance(shape, dict):
        return {key: _with_tensors(part, tensors) for key, part in shape.items()}
    if isinstance(shape, (list, tuple)):
        return type(shape)(_with_tensors(part, tensors) for part in shape)
    return shape
