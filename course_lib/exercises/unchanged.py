"""Notice whether somebody wrote into a tensor, a model or a list of them, however they did it."""

import itertools

import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def held(thing):
    """What `changed` needs to know about a tensor, module, optimizer, array or container before a call."""
    return thing, [(leaf, _copy(leaf)) for leaf in _leaves(thing)]


def changed(record):
    """True if the thing that `held` recorded is no longer the same, bit for bit. Gradients do not count."""
    thing, before = record
    now = list(_leaves(thing))
    return len(now) != len(before) or not all(_same(leaf, *old) for leaf, old in zip(now, before))


def _leaves(thing):
    """Everything in it that can change, in a fixed order."""
    if isinstance(thing, torch.Tensor):
        yield from (thing, thing.requires_grad)
    elif isinstance(thing, torch.nn.Module):
        for name, tensor in itertools.chain(thing.named_parameters(), thing.named_buffers()):
            yield from (name, tensor, tensor.requires_grad)
        yield from (module.training for module in thing.modules())
    elif isinstance(thing, torch.optim.Optimizer):
        yield from _leaves(thing.state_dict())
    elif isinstance(thing, dict):
        yield from thing
        yield from _leaves(list(thing.values()))
    elif isinstance(thing, (list, tuple)):
        yield len(thing)
        for item in thing:
            yield from _leaves(item)
    else:
        yield thing


def _copy(leaf):
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone()
    return leaf.copy() if _is_array(leaf) else leaf


def _same(now, leaf, copy):
    if isinstance(leaf, torch.Tensor):
        return now is leaf and _same_bits(leaf.detach(), copy)
    if _is_array(leaf):
        return now is leaf and now.shape == copy.shape and now.tobytes() == copy.tobytes()
    return now is leaf or (type(now) is type(leaf) and type(now) in _PLAIN and now == leaf)


def _same_bits(a, b):
    """NaN equals NaN here: what counts is whether somebody wrote into it."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    flat = [tensor.contiguous().reshape(-1) for tensor in (a, b)]
    return a.numel() == 0 or torch.equal(*(tensor.view(torch.uint8) for tensor in flat))


def _is_array(thing):
    return type(thing).__module__ == "numpy" and hasattr(thing, "tobytes")
