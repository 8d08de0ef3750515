"""Couplings, one family a module; each docstring has the formula, its inverse, its rounding and its source."""

from petra_graph.blocks.couplings.additive import Additive, AdditiveCoupling, TwoFunctionCoupling
from petra_graph.blocks.couplings.base import Coupling

__all__ = [
    "Additive",
    "AdditiveCoupling",
    "Coupling",
    "TwoFunctionCoupling",
]
