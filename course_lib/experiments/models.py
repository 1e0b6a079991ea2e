"""The three models of the course: an MLP, a small CNN and a small GPT. Plain modules, so that every byte can be explained."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def mlp(inputs: int = 64, width: int = 256, depth: int = 4, classes: int = 10, activation=nn.ReLU) -> nn.Sequential:
    """`depth` hidden layers (Linear and activation), then a Linear to `classes`. Input (batch, inputs)."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Linear(inputs if i == 0 else width, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width if depth else inputs, classes))


def cnn(channels: int = 16, classes: int = 10) -> nn.Sequential:
    """Two convolutions with BatchNorm for 8 x 8 grey images. Input (batch, 1, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * channels * 16, classes),
    )


class Block(nn.Module):
    """A pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)). Input (batch, length, width)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, fused: bool = True):
        super().__init__()
        if width % heads:
            raise ValueError(f"The width must be a multiple of the number of heads; {width} is not a multiple of {heads}.")
        self.heads, self.dropout, self.fused = heads, dropout, fused
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # every matrix on the way stands in memory: length x length numbers for each head
            scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self.attention(self.norm1(x)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


class GPT(nn.Module):
    """A small GPT with a tied head. Input: token numbers (batch, length). Output: logits (batch, length, vocab)."""

    def __init__(self, vocab=256, length=64, width=128, depth=4, heads=4, dropout: float = 0.0, fused: bool = True):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout, fused) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if tokens.shape[-1] > self.positions.num_embeddings:
            raise ValueError(f"This GPT was built for {self.positions.num_embeddings} tokens, not {tokens.shape[-1]}.")
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))


def next_token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all tokens. logits (batch, length, vocab), targets (batch, length) of integers."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
