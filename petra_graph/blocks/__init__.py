"""The base classes of blocks, for authors.

A reversible block author subclasses `AdditiveCoupling` and writes the residual function; everything else (inverse,
gradient with one evaluation, dropout, statistics, autocast) comes with it.
"""

from petra_graph.blocks.base import Block, Buffered, Head, Reversed, Reversible, Shape, Streams, backpropagate, leaf
from petra_graph.blocks.couplings import Additive, AdditiveCoupling, Coupling, TwoFunctionCoupling
from petra_graph.blocks.randomness import reseed, rng_scope
from petra_graph.blocks.statistics import frozen_statistics
from petra_graph.registry.contracts import BlockDeclaration, NoOptions, option

__all__ = [
    "Additive",
    "AdditiveCoupling",
    "Block",
    "BlockDeclaration",
    "Buffered",
    "Coupling",
    "Head",
    "NoOptions",
    "Reversed",
    "Reversible",
    "Shape",
    "Streams",
    "TwoFunctionCoupling",
    "backpropagate",
    "frozen_statistics",
    "leaf",
    "option",
    "reseed",
    "rng_scope",
]
