"""Networks of one's own, which a run finds again by this module's name."""

from __future__ import annotations

import torch
from torch import nn


class Remainders(nn.Module):
    """Its forward does not read all of its `state_dict`, and reads buffers that are not in it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.activation = nn.PReLU()
        self.body = nn.Sequential(self.activation, nn.Linear(8, 8), self.activation)
        self.unread, self.scale = nn.BatchNorm1d(5), nn.Parameter(torch.ones(2))
        self.register_buffer("factors", torch.linspace(0, 1, 8), persistent=False)

    def forward(self, x):
        return self.last(self.body(self.first(x)) * self.factors)


class Drawn(nn.Module):
    """Its constructor draws what its `state_dict` does not have."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("directions", torch.randn(8), persistent=False)

    def forward(self, x):
        return self.last(self.first(x).tanh() * self.directions)
