"""Notice whether somebody wrote into a tensor, a model or a list of them, however they did it."""

import itertools

import torch


def held(thing):
    """What `changed` needs to know about a tensor, module, optimizer, array or container before a call."""
    if isinstance(thing, torch.Tensor):
        return thing, (thing.requires_grad, thing.detach().clone())
    if isinstance(thing, torch.nn.Module):
        tensors = dict(itertools.chain(thing.named_parameters(), thing.named_buffers()))
        training = [module.training for module in thing.modules()]
        return thing, (training, {name: held(tensor) for name, tensor in tensors.items()})
    if isinstance(thing, torch.optim.Optimizer):
        return thing, held(thing.state_dict())
    if isinstance(thing, dict):
        return thing, {key: held(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return thing, [held(value) for value in thing]
    if type(thing).__module__ == "numpy" and hasattr(thing, "tobytes"):
        return thing, (thing.shape, thing.tobytes())
    return thing, None


def changed(record):
    """True if the thing that `held` recorded is no longer the same, bit for bit. Gradients do not count."""
    thing, before = record
    if isinstance(thing, torch.Tensor):
        grad, values = before
        return thing.requires_grad != grad or not _same_bits(thing.detach(), values)
    if isinstance(thing, torch.nn.Module):
        training, tensors = before
        now = dict(itertools.chain(thing.named_parameters(), thing.named_buffers()))
        if training != [module.training for module in thing.modules()] or list(now) != list(tensors):
            return True
        return any(now[name] is not tensors[name][0] or changed(tensors[name]) for name in now)
    if isinstance(thing, torch.optim.Optimizer):
        return _differs(thing.state_dict(), before)
    if isinstance(thing, (dict, list, tuple)):
        return _differs(thing, record)
    if before is not None:
        return (thing.shape, thing.tobytes()) != before
    return False


def _differs(now, record):
    """True if a container no longer holds the same items, or one of them changed."""
    _, before = record
    if isinstance(now, dict):
        if list(now) != list(before):
            return True
        pairs = [(now[key], before[key]) for key in before]
    else:
        if len(now) != len(before):
            return True
        pairs = list(zip(now, before))
    for value, old in pairs:
        if isinstance(value, (dict, list, tuple)) and type(value) is type(old[0]):
            if _differs(value, old):
                return True
        elif old[1] is None:
            if value is not old[0] and (type(value) not in (int, float, str, bool) or value != old[0]):
                return True
        elif value is not old[0] or changed(old):
            return True
    return False


def _same_bits(a, b):
    """NaN equals NaN here: what counts is whether somebody wrote into it."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.numel() == 0:
        return True
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b)]
    return torch.equal(*flat)
