"""Couplings, one family a module; each docstring has the formula, its inverse, its rounding and its source."""

from petra_graph.blocks.couplings.additive import Additive, AdditiveCoupling, TwoFunctionCoupling
from petra_graph.blocks.couplings.affine import AffineCoupling
from petra_graph.blocks.couplings.bdia import BdiaCoupling, ExactBdiaCoupling
from petra_graph.blocks.couplings.coupling import Coupling
from petra_graph.blocks.couplings.many_streams import ColumnCoupling, RingCoupling
from petra_graph.blocks.couplings.momentum import MomentumCoupling
from petra_graph.blocks.couplings.rearrangement import ChannelPermutation, OrthogonalMixing, SpaceToDepth
from petra_graph.blocks.couplings.residual_chain import (
    DualResidualEntry,
    DualResidualStep,
    MidpointEntry,
    MidpointStep,
)
from petra_graph.blocks.couplings.two_step import Coefficients, LeapfrogCoupling, MidpointCoupling, TwoStepCoupling

__all__ = [
    "Additive",
    "AdditiveCoupling",
    "AffineCoupling",
    "BdiaCoupling",
    "ChannelPermutation",
    "Coefficients",
    "ColumnCoupling",
    "Coupling",
    "DualResidualEntry",
    "DualResidualStep",
    "ExactBdiaCoupling",
    "LeapfrogCoupling",
    "MidpointCoupling",
    "MidpointEntry",
    "MidpointStep",
    "MomentumCoupling",
    "OrthogonalMixing",
    "RingCoupling",
    "SpaceToDepth",
    "TwoFunctionCoupling",
    "TwoStepCoupling",
]
