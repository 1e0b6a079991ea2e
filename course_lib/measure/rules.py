"""What a CUDA device does otherwise than a CPU, as rules that a prediction on the CPU can follow.

    rule                                          where it comes from
    every storage takes a multiple of 512 bytes   c10/cuda/CUDACachingAllocator: kMinBlockSize
    optimizers are `foreach`                      torch/optim/optimizer.py: _default_to_fused_or_foreach
    dropout keeps a mask of one byte a number     native_dropout (a CPU multiplies by a mask of floats)
    attention never keeps the scores              flash / memory-efficient SDPA keep the output and a log-sum-exp for each row;
                                                  with dropout, too (a CPU falls back to the scores then)
    autocast runs norms, softmax, losses in fp32  "CUDA ops that autocast to float32" in the documentation of torch.amp

Not in the allocator's count, and never added here: the CUDA context (some hundred MiB) and what libraries take for themselves.
cuBLAS takes a workspace through the allocator at the first matrix product (`CUBLAS_WORKSPACE_BYTES`); scratch inside kernels
(flash attention's backward accumulates in fp32) is not seen either.
"""

from __future__ import annotations

import contextlib

import torch
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

ALLOCATOR_BLOCK = 512
# at::cuda::getCUDABlasLtWorkspaceSize and the default of CUBLAS_WORKSPACE_CONFIG: 8 x 1 MiB + 2 x 64 KiB; Hopper: 32 MiB
CUBLAS_WORKSPACE_BYTES = {"before Hopper": 8519680, "Hopper": 32 * 2**20}

# "CUDA ops that autocast to float32", as far as a training step is likely to call them
IN_FP32 = {
    F.layer_norm, F.group_norm, F.softmax, torch.softmax, torch.Tensor.softmax, F.log_softmax, torch.log_softmax,
    torch.Tensor.log_softmax, F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.kl_div,
    F.binary_cross_entropy_with_logits, F.cosine_similarity, torch.exp, torch.log, torch.pow, torch.sum, torch.Tensor.exp,
    torch.Tensor.log, torch.Tensor.pow, torch.Tensor.sum, torch.cumsum, torch.norm, F.softplus,
}  # fmt: skip


class _AsOnCuda(TorchFunctionMode):
    """Calls on the CPU, answered in the way in which a CUDA device would answer them."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (F.dropout, torch.dropout):
            return _dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return func(*args[:4], **{**kwargs, "dropout_p": 0.0}, **({"is_causal": args[5]} if len(args) > 5 else {}))
        if func in IN_FP32 and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return func(*map(_fp32, args), **{name: _fp32(value) for name, value in kwargs.items()})
        return func(*args, **kwargs)


def _dropout(input, p=0.5, training=True, inplace=False, train=None):
    training = training if train is None else train
    if not training or p == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


def _fp32(value):
    low = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if low else value


@contextlib.contextmanager
def cuda_rules():
    """Run a block by the rules above. Rounding is the Meter's part (block_bytes=ALLOCATOR_BLOCK)."""

    def foreach(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                group["foreach"] = True

    hook = register_optimizer_step_pre_hook(foreach)
    try:
        with _AsOnCuda():
            yield
    finally:
        hook.remove()
