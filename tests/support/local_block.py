"""A block without a package, and a specification that trains it."""

from __future__ import annotations

MODULE = """
from petra_graph.blocks import AdditiveCoupling
from torch import nn


class MyBlock(AdditiveCoupling):
    def __init__(self, inputs):
        super().__init__(inputs)
        channels = inputs[0][0]
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def residual(self, x):
        return self.conv(x).tanh()
"""
SPEC = """
name = "local"

[[graph.node]]
name = "stem"
block = "conv-stem"
options = { channels = 32 }

[[graph.node]]
name = "mine"
block = "my_module:MyBlock"
kind = "reversible"
repeat = 2

[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }

[method]
schedule = "1f1b"

[optimizer]
name = "adamw"
options = { lr = 0.005 }

[data]
name = "digits"
batch = 32

[run]
epochs = 3
"""
