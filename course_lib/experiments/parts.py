"""The models of the experiments, cut into a row of parts: a stem, the blocks, and a head that ends in the loss.

Each part takes one tensor and returns one, so that a schedule can run the row and a planner can measure it part by part.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from course_lib.memory.checkpoint import checkpoint
from course_lib.memory.offload import offload_to_cpu, offload_to_disk, offload_to_nowhere
from course_lib.memory.selective import keep_outputs_of

from .data import digits
from .models import Block, next_token_loss

VOCABULARY = 128  # ASCII
CLASSES = 10
SMALL = 4096  # bytes; what is smaller is not worth a file


class Embed(nn.Module):
    """Tokens (batch, length) to vectors (batch, length, width)."""

    def __init__(self, length: int, width: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)

    def forward(self, tokens):
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[-1], device=tokens.device))


class Residual(nn.Module):
    """x + conv(relu(norm(conv(x)))), 3 x 3, all of one width. GroupNorm: a sample's gradient depends on no other sample."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm = nn.GroupNorm(1, width)

    def forward(self, x):
        return x + self.second(F.relu(self.norm(self.first(x))))


class Head(nn.Module):
    """The last layers and the loss. `targets` and `share` (of the micro-batch in the update) are set before each forward."""

    def __init__(self, layers: nn.Module, loss):
        super().__init__()
        self.layers, self.loss = layers, loss
        self.share = 1.0
        self.register_buffer("targets", None, persistent=False)  # a buffer: whoever counts this part's bytes knows them

    def forward(self, x):
        return self.loss(self.layers(x), self.targets) * self.share


class Cast(nn.Module):
    """One part under bf16 autocast. Each part has a context of its own: casts of weights end with the part that made them."""

    def __init__(self, part: nn.Module):
        super().__init__()
        self.part = part

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.part(x)


def _dear(operator, args, kwargs) -> bool:
    """Matrix products, convolutions and attention: dear to run again."""
    name = operator.overloadpacket.__name__
    return name in ("mm", "addmm", "bmm", "convolution") or name.startswith("_scaled_dot_product")


class Selective(nn.Module):
    """A block that is run again in backward, all but its matrix products and its attention."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, context_fn=keep_outputs_of(_dear))


class Offloaded(nn.Module):
    """A block whose saved tensors wait elsewhere: a GPU's in the CPU's memory, a CPU's in files."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, x):
        with _elsewhere(x):
            return self.block(x)


def _elsewhere(x):
    if predicting():
        return offload_to_nowhere(min_bytes=SMALL)
    return offload_to_disk(min_bytes=SMALL) if x.device.type == "cpu" else offload_to_cpu(min_bytes=SMALL)


def net(setting, depth: int | None = None) -> nn.Sequential:
    """The parts of a setting's model: stem, `depth` blocks (default: the setting's), head; wrapped as its policy asks."""
    width, wrap = setting.width, {"selective": Selective, "offload": Offloaded}.get(setting.policy, lambda block: block)
    depth = setting.depth if depth is None else depth
    if setting.model == "gpt":
        stem = Embed(setting.length, width)
        blocks = [Block(width, setting.heads) for _ in range(depth)]
        head = Head(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)), next_token_loss)
    else:
        stem = nn.Conv2d(1, width, 3, padding=1)
        blocks = [Residual(width) for _ in range(depth)]
        head = Head(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)), F.cross_entropy)
    parts = [stem, *map(wrap, blocks), head]
    return nn.Sequential(*(Cast(part) if setting.precision == "bf16" else part for part in parts))


def head_of(parts: nn.Sequential) -> Head:
    last = parts[-1]
    return last.part if isinstance(last, Cast) else last


# -- data ----------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _text() -> bytes:
    """The documentation that Python ships for its `help()`: 400 KB of real English, as ASCII."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")


def windows(samples: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, targets), both (samples, length) of int64: stretches of the text, and the same one character later."""
    text = _text()
    step = max(1, (len(text) - length - 1) // samples)
    rows = torch.tensor([list(text[i * step : i * step + length + 1]) for i in range(samples)])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def batch(setting) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, targets) of one update, on the CPU. Inside a prediction the tensors have no data, as everything there."""
    with _disable_current_modes():
        if setting.model == "gpt":
            made = windows(setting.effective_batch, setting.length)
        else:
            pixels, labels = digits(setting.effective_batch, image=True)
            scale = setting.length // 8
            made = pixels.repeat_interleave(scale, 2).repeat_interleave(scale, 3).contiguous(), labels
    return tuple(torch.empty(tensor.shape, dtype=tensor.dtype) if predicting() else tensor for tensor in made)


def predicting() -> bool:
    """True while tensors have no data."""
    return detect_fake_mode() is not None
