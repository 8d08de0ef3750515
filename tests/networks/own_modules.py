"""Modules and functions that specifications name, of which some make modules."""

from torch import nn

from tests.support.pipelines import CLASSES

WIDTH = 8

THERE = nn.Linear(2, 2)


class Halves(nn.Linear):
    def forward(self, x):
        return list(super().forward(x).chunk(2, dim=1))


def layers(channels, dropout):
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.Dropout(dropout)
    )


def number():
    return 3


class PreNorm(nn.Module):
    """A transformer's block; its submodule has the name of a coupling's method."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.residual = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        query, key, value = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.dropout(self.out(attended))
        return x + self.residual(self.norm2(x))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.linear(x.mean(1))
