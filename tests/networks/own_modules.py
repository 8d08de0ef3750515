"""Modules and functions that specifications name, of which some make modules."""

from torch import nn


class Halves(nn.Linear):
    def forward(self, x):
        return list(super().forward(x).chunk(2, dim=1))


def number():
    return 3
