"""The base classes of blocks, for authors.

A reversible block author subclasses `AdditiveCoupling` and writes the residual function; everything else (inverse,
gradient with one evaluation, dropout, statistics, autocast) comes with it.
"""

from petra_graph.blocks.base import Block, Buffered, Head, Reversed, Reversible, Shape, Streams, backpropagate, leaf
from petra_graph.blocks.couplings import (
    Additive,
    AdditiveCoupling,
    AffineCoupling,
    BdiaCoupling,
    ChannelPermutation,
    Coefficients,
    ColumnCoupling,
    Coupling,
    ExactBdiaCoupling,
    LeapfrogCoupling,
    MidpointCoupling,
    MomentumCoupling,
    OrthogonalMixing,
    RingCoupling,
    SpaceToDepth,
    TwoFunctionCoupling,
    TwoStepCoupling,
)
from petra_graph.blocks.randomness import reseed, rng_scope
from petra_graph.blocks.statistics import frozen_statistics
from petra_graph.registry.contracts import BlockDeclaration, NoOptions, option

__all__ = [
    "Additive",
    "AdditiveCoupling",
    "AffineCoupling",
    "BdiaCoupling",
    "Block",
    "BlockDeclaration",
    "Buffered",
    "ChannelPermutation",
    "Coefficients",
    "ColumnCoupling",
    "Coupling",
    "ExactBdiaCoupling",
    "Head",
    "LeapfrogCoupling",
    "MidpointCoupling",
    "MomentumCoupling",
    "NoOptions",
    "OrthogonalMixing",
    "Reversed",
    "Reversible",
    "RingCoupling",
    "Shape",
    "SpaceToDepth",
    "Streams",
    "TwoFunctionCoupling",
    "TwoStepCoupling",
    "backpropagate",
    "frozen_statistics",
    "leaf",
    "option",
    "reseed",
    "rng_scope",
]
