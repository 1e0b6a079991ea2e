"""Selective recompute: keep the outputs of chosen operators, and run only the others again.

    y = checkpoint(block, x, context_fn=keep_outputs_of(torch.ops.aten.mm.default, torch.ops.aten.addmm.default))

Matrix products are dear to run again; what lies between them (norms, activations, dropout) is cheap, and often larger.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# A checkpoint detaches another number of tensors in forward than in a rerun, so this one is never counted.
IGNORED = {torch.ops.aten.detach.default}


def keep_outputs_of(*operators):
    """A `context_fn` for `checkpoint`: outputs of these operators are kept in forward and handed out again in the rerun.

    operators: OpOverloads (torch.ops.aten.mm.default), packets (torch.ops.aten.mm: all its overloads), or one function
    policy(operator, args, kwargs) -> bool, asked once for each call in forward. Memory: the bytes of all kept outputs, until
    backward has used them. Raises TypeError for anything else.

    In the rerun the i-th call of an operator gets the i-th kept output; if the calls are not those of forward,
    CheckpointError says so. A kept tensor that was changed in place raises, too.
    """
    if len(operators) == 1 and callable(operators[0]) and not isinstance(operators[0], _OPERATORS):
        policy = operators[0]
    else:
        chosen = set()
        for operator in operators:
            if isinstance(operator, torch._ops.OpOverloadPacket):
                chosen.update(getattr(operator, name) for name in operator.overloads())
            elif isinstance(operator, torch._ops.OpOverload):
                chosen.add(operator)
            else:
                raise TypeError(f"keep_outputs_of takes operators such as torch.ops.aten.mm.default, not {operator!r}.")

        def policy(operator, args, kwargs):
            return operator in chosen

    def contexts():
        kept = _Kept()
        return _Keeping(policy, kept), _HandingOut(kept)

    return contexts


_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


class _Kept:
    """{operator: for each of its calls None (run it again) or the tensors it made, with their versions}."""

    def __init__(self):
        self.calls: dict = defaultdict(list)


class _Keeping(TorchDispatchMode):
    def __init__(self, policy, kept: _Kept):
        super().__init__()
        self.policy, self.kept = policy, kept

    def __enter__(self):
        # A weight that another region has cast already is not cast again: forward and rerun would count casts differently.
        self.cache = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        return super().__enter__()

    def __exit__(self, *error):
        torch.set_autocast_cache_enabled(self.cache)
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func not in IGNORED:
            wanted = self.policy(func, args, kwargs or {})
            self.kept.calls[func].append(_sealed(out) if wanted else None)
        return out


class _HandingOut(_Keeping):
    def __init__(self, kept: _Kept):
        super().__init__(None, kept)

    def __enter__(self):
        self.counts: dict = defaultdict(int)
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in IGNORED:
            return func(*args, **(kwargs or {}))
        i, calls = self.counts[func], self.kept.calls.get(func, ())
        self.counts[func] += 1
        if i >= len(calls):
            raise _mismatch(func, len(calls))
        if calls[i] is None:
            return func(*args, **(kwargs or {}))
        if calls[i] is USED:
            raise RuntimeError(
                "Trying to backward an extra time through a region whose outputs were kept: they were freed when backward used "
                "them. Pass retain_graph=True to the first backward."
            )
        opened = _opened(calls[i], func)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            calls[i] = USED  # the rerun's graph holds the tensor now, for as long as it is needed
        return opened


USED = object()


def _sealed(out):
    if isinstance(out, (list, tuple)):
        return type(out)(map(_sealed, out))
    if not isinstance(out, torch.Tensor):
        return out
    # Under a dispatch mode in-place changes are not counted; without this the kept tensor would not share the counter.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        kept = out.detach()
    return kept, kept._version


def _opened(kept, func):
    if isinstance(kept, tuple) and len(kept) == 2 and isinstance(kept[0], torch.Tensor) and isinstance(kept[1], int):
        tensor, version = kept
        if tensor._version != version:
            raise RuntimeError(f"A kept output of {func} has been mutated since forward: it cannot be handed out again.")
        return tensor.detach()
    return type(kept)(_opened(part, func) for part in kept) if isinstance(kept, (list, tuple)) else kept


def _mismatch(func, count: int):
    from .checkpoint import CheckpointError

    return CheckpointError(
        f"The rerun called {func} more often than forward ({count} times): the region took another path, so kept outputs cannot "
        "be matched with calls."
    )
