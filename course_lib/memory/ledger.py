"""The ledger: what a training step keeps in memory, by formula. All results are bytes, as integers.

Every function returns a dict {what: bytes}, so that a sum never hides its parts; `total(parts)` adds them up. The tests
hold each formula against the Meter. Where a kernel keeps something that the textbook does not mention (a row's mean, a
log-sum-exp), it is a part of its own.

Words: `tokens` is batch x length; `itemsize` is the bytes of one number (4 for fp32, 2 for bf16 and fp16).
"""

from __future__ import annotations

import torch

# Norms and attention keep their row statistics in fp32. (Two exceptions: float64 models keep them in float64, and a CPU's
# LayerNorm with bf16 weights keeps them in bf16.)
STATISTIC = 4


def total(parts: dict) -> int:
    """The sum of a ledger, in bytes."""
    return sum(parts.values())


# -- states: what stays from step to step ------------------------------------------------------------------------------

# Numbers kept per parameter, besides the parameter and its gradient (torch.optim's implementations).
NUMBERS_PER_PARAMETER = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def states(parameters, recipe: str = "adam") -> dict:
    """Parameters, gradients and optimizer state after the first update.

    parameters: a module, or an iterable of tensors. A tensor shared by two layers counts once. Frozen parameters have no
        gradient and no state.
    recipe: "sgd", "momentum", "adam", "adamw": everything in the parameters' own dtype. Adam also keeps a step counter,
        a 4-byte tensor for each parameter tensor (torch.optim.Adam).
        "mixed adam": bf16 parameters and gradients; the optimizer owns an fp32 master copy and fp32 moments:
        2 + 2 + 4 + 4 + 4 = 16 bytes per parameter (Rajbhandari et al. 2020, ZeRO, section 3.1).
    """
    mine = list(parameters.parameters() if isinstance(parameters, torch.nn.Module) else parameters)
    mine = list({id(p): p for p in mine}.values())
    trained = [p for p in mine if p.requires_grad]
    steps = STATISTIC * len(trained)
    if recipe == "mixed adam":
        numbers = sum(p.numel() for p in trained)
        frozen = sum(p.numel() for p in mine if not p.requires_grad)
        return {
            "parameters": 2 * (numbers + frozen),
            "gradients": 2 * numbers,
            "master parameters": 4 * numbers,
            "optimizer state": 8 * numbers + steps,
        }
    if recipe not in NUMBERS_PER_PARAMETER:
        known = ", ".join([*NUMBERS_PER_PARAMETER, "mixed adam"])
        raise ValueError(f"There is no recipe {recipe!r}. Known: {known}.")
    nbytes = sum(p.numel() * p.element_size() for p in trained)
    return {
        "parameters": sum(p.numel() * p.element_size() for p in mine),
        "gradients": nbytes,
        "optimizer state": NUMBERS_PER_PARAMETER[recipe] * nbytes + (steps if recipe.startswith("adam") else 0),
    }


def gpt_parameters(vocab: int, length: int, width: int, depth: int) -> dict:
    """Numbers (not bytes) of a GPT with learned positions and a tied head, as in `experiments.models.GPT`.

    A block has two LayerNorms (2 x 2d), qkv (3d^2 + 3d), out (d^2 + d) and an MLP of width 4d (8d^2 + 5d): 12 d^2 + 13 d.
    """
    d = width
    return {"tokens": vocab * d, "positions": length * d, "blocks": depth * (12 * d * d + 13 * d), "final norm": 2 * d}


# -- activations: what one layer keeps for its backward pass -----------------------------------------------------------
# Each layer keeps its input or its output. A tensor that two layers keep exists once, so sums over a model leave out
# what the layer before has already kept.


def linear(tokens: int, inputs: int, itemsize: int = 4) -> dict:
    """y = x W^T + b: the gradient of W needs x. Shape (tokens, inputs)."""
    return {"input": tokens * inputs * itemsize}


def conv2d(batch: int, channels: int, height: int, width: int, itemsize: int = 4) -> dict:
    """Like Linear: the gradient of the kernel needs the input."""
    return {"input": batch * channels * height * width * itemsize}


def relu(numbers: int, itemsize: int = 4) -> dict:
    """Its own output tells where the input was positive. The next layer mostly keeps the same tensor."""
    return {"output": numbers * itemsize}


def gelu(numbers: int, itemsize: int = 4) -> dict:
    """The slope needs the input; the output does not determine it."""
    return {"input": numbers * itemsize}


def softmax(numbers: int, itemsize: int = 4) -> dict:
    """Its gradient is written with its own output."""
    return {"output": numbers * itemsize}


def layer_norm(tokens: int, width: int, itemsize: int = 4) -> dict:
    """Its input, and each row's mean and 1/standard deviation in fp32."""
    return {"input": tokens * width * itemsize, "row statistics": 2 * tokens * STATISTIC}


def batch_norm(batch: int, channels: int, height: int, width: int, itemsize: int = 4) -> dict:
    """Its input, and each channel's mean and 1/standard deviation in fp32."""
    return {"input": batch * channels * height * width * itemsize, "channel statistics": 2 * channels * STATISTIC}


def dropout(numbers: int, itemsize: int = 4, device: str = "cpu") -> dict:
    """The mask. PyTorch's CPU code keeps it in the activations' dtype, the CUDA kernel as one byte each."""
    return {"mask": numbers * (1 if device == "cuda" else itemsize)}


def attention(batch: int, length: int, width: int, heads: int, itemsize: int = 4, fused: bool = True) -> dict:
    """softmax(q k^T / sqrt(d)) v, causal, between the qkv and the output projections.

    fused (scaled_dot_product_attention): q, k, v, the result and one log-sum-exp per row and head.
    not fused: also a causal mask (1 byte each) and the probabilities: length x length for every sample and head.
    """
    row = batch * length * width * itemsize
    parts = {"q, k, v": 3 * row, "result": row}
    if fused:
        parts["log-sum-exp"] = batch * heads * length * STATISTIC
    else:
        parts["causal mask"] = length * length
        parts["probabilities"] = batch * heads * length * length * itemsize
    return parts


def cross_entropy(tokens: int, classes: int, itemsize: int = 4) -> dict:
    """The log-probabilities, the sum of the target weights (one number), and the loss itself."""
    return {"log-probabilities": tokens * classes * itemsize, "weight sum": itemsize, "loss": itemsize}


# -- activations of whole models ---------------------------------------------------------------------------------------


def mlp_activations(batch: int, width: int, depth: int, classes: int, itemsize: int = 4, activation="relu") -> dict:
    """`experiments.models.mlp` under cross-entropy, without the inputs (they exist anyway).

    With ReLU each hidden layer keeps one tensor: ReLU's output is the next Linear's input. With GELU it keeps two.
    """
    each = relu(batch * width, itemsize) if activation == "relu" else gelu(batch * width, itemsize)
    parts = {f"{activation} {name}": depth * nbytes for name, nbytes in each.items()}
    if activation != "relu":
        parts["linear input"] = depth * total(linear(batch, width, itemsize))
    return {**parts, **cross_entropy(batch, classes, itemsize)}


def block_activations(
    batch: int, length: int, width: int, heads: int, itemsize=4, fused=True, dropout_p=0.0, device="cpu"
) -> dict:
    """One pre-norm transformer block (`experiments.models.Block`), its input included.

    In units of batch x length x width: x 1, norm1's result 1, q k v 3, attention's result 1, the sum after attention 1,
    norm2's result 1, the MLP's 4 before GELU and 4 after: 16, and a little for row statistics.
    """
    tokens = batch * length
    row = tokens * width * itemsize
    parts = {
        "norm1 input": row,
        "norm1 result": row,
        **attention(batch, length, width, heads, itemsize, fused),
        "norm2 input": row,
        "norm2 result": row,
        "gelu input": 4 * row,
        "gelu result": 4 * row,
        "norm statistics": 2 * layer_norm(tokens, width)["row statistics"],
    }
    if dropout_p > 0:
        parts["dropout masks"] = 2 * total(dropout(tokens * width, itemsize, device))
    return parts


def gpt_activations(
    batch, length, width, depth, heads, vocab, itemsize=4, fused=True, dropout_p=0.0, device="cpu"
) -> dict:
    """`experiments.models.GPT` under the mean next-token loss, without the token numbers (they exist anyway)."""
    tokens = batch * length
    return {
        "position numbers": length * 8,
        "blocks": depth * total(block_activations(batch, length, width, heads, itemsize, fused, dropout_p, device)),
        "final norm input": tokens * width * itemsize,
        "final norm result": tokens * width * itemsize,
        "final norm statistics": layer_norm(tokens, width)["row statistics"],
        **cross_entropy(tokens, vocab, itemsize),
    }


def logits(batch: int, length: int, vocab: int, itemsize: int = 4) -> dict:
    """The widest tensors of a language model, all alive at once while the loss's backward begins.

    The gradient of the log-probabilities is mostly zeros, and full size all the same.
    """
    each = batch * length * vocab * itemsize
    return {
        "logits, while the caller holds them": each,
        "log-probabilities": each,
        "gradient of the log-probabilities": each,
        "gradient of the logits": each,
    }


def korthikanti_block(batch: int, length: int, width: int, heads: int) -> int:
    """Bytes of one 16-bit transformer block with dropout and unfused attention: s b h (34 + 5 a s / h).

    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equation 2.
    """
    return length * batch * width * 34 + 5 * heads * length * length * batch
