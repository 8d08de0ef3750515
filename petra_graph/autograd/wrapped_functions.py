"""Couplings around ordinary modules: a residual function x -> F(x) of the same shape, or a pair of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, Literal

from attrs import frozen
from torch import Tensor, nn

from petra_graph.autograd.sequence_call import evaluated
from petra_graph.blocks import (
    AdditiveCoupling,
    AffineCoupling,
    BdiaCoupling,
    ExactBdiaCoupling,
    LeapfrogCoupling,
    MidpointCoupling,
    MomentumCoupling,
    NoOptions,
    Reversible,
    TwoFunctionCoupling,
)

CouplingName = Literal["additive", "affine", "midpoint", "leapfrog", "momentum", "bdia", "exact-bdia"]


class _OneFunction(Reversible):
    """A coupling of `function`, with the coefficients that its class has."""

    def __init__(self, function: nn.Module, coefficients: Mapping[str, float]) -> None:
        super().__init__((), NoOptions())
        self.function = function
        for name, value in coefficients.items():
            setattr(self, name, value)

    def residual(self, x: Tensor, *differentiated: Tensor) -> Tensor:
        return evaluated(self.function, x, *differentiated)


class Additive(_OneFunction, AdditiveCoupling):
    """(x, t) -> (t + F(x), x)."""


class Midpoint(_OneFunction, MidpointCoupling):
    """(x, previous) -> (previous + 2h F(x), x)."""


class Leapfrog(_OneFunction, LeapfrogCoupling):
    """(x, previous) -> (2 x - previous + h^2 F(x), x)."""


class Momentum(_OneFunction, MomentumCoupling):
    """(x, v) -> (x + v', v') with v' = g v + (1 - g) F(x)."""


class Bdia(_OneFunction, BdiaCoupling):
    """(x, previous) -> ((1 - g) x + g previous + (1 + g) F(x), x)."""


class ExactBdia(_OneFunction, ExactBdiaCoupling):
    """The same on a grid, with a stream of bits."""


class Affine(_OneFunction, AffineCoupling):
    """(x, t) -> (t * exp(s) + u, x) for (s, u) = F(x), two tensors or one with twice the features."""

    def scale_and_shift(self, x: Tensor, *differentiated: Tensor) -> tuple[Tensor, Tensor]:
        """Return s before it is bounded, and u."""
        value: Any = evaluated(self.function, x, *differentiated)
        if isinstance(value, Tensor) and value.dim() == x.dim():
            changed = [at for at, (one, other) in enumerate(zip(value.shape, x.shape, strict=True)) if one != other]
            value = value.chunk(2, changed[0] if changed else 1)
        if not isinstance(value, tuple | list) or len(value) != 2:  # noqa: PLR2004  s and u
            returned = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(
                "a function of an affine coupling returns two tensors (s, u) of its input's shape, or one with twice the "
                f"features (got {returned} for an input {list(x.shape)})"
            )
        log_scale, shift = value
        return log_scale, shift


class TwoFunctions(TwoFunctionCoupling):
    """y1 = x1 + F(x2);  y2 = x2 + G(y1)."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__((), NoOptions())
        self.first, self.second = first, second

    def f(self, x: Tensor, *differentiated: Tensor) -> Tensor:
        return evaluated(self.first, x, *differentiated)

    def g(self, x: Tensor, *differentiated: Tensor) -> Tensor:
        return evaluated(self.second, x, *differentiated)


@frozen
class Wrapper:
    """How functions are coupled, and the coefficient that a caller may choose."""

    block: type[_OneFunction]
    coefficient: str = ""
    least: float = 0.0
    most: float = inf
    """Between them, and not at 0, the coupling has an inverse."""

    def check(self, name: str, value: float) -> None:
        """Check that the coupling has an inverse with this coefficient.

        Raises:
            ValueError: it has none.
        """
        if not self.least <= value <= self.most or value == 0:
            raise ValueError(f"{name} must lie in {self.least:g} .. {self.most:g} and not be 0 (got {value})")


WRAPPERS: Mapping[CouplingName, Wrapper] = MappingProxyType(
    {
        "additive": Wrapper(Additive),
        "affine": Wrapper(Affine, "log_scale_bound"),
        "midpoint": Wrapper(Midpoint, "step_size", least=-inf),
        "leapfrog": Wrapper(Leapfrog, "step_size", least=-inf),
        "momentum": Wrapper(Momentum, "momentum", most=1),
        "bdia": Wrapper(Bdia, "magnitude", most=1),
        "exact-bdia": Wrapper(ExactBdia, "quantum_bits", least=1, most=23),
    }
)
FUNCTIONS = (_OneFunction, TwoFunctions)
"""Blocks of functions, which read what a call gives beside the streams; any other block reads streams alone."""


def wrap(entry: object, coupling: CouplingName, coefficients: Mapping[str, float]) -> Reversible:
    """Return the block of one entry of a sequence: a function, a pair of them, or a reversible block as it is.

    Raises:
        TypeError: it is none of these.
        ValueError: pairs cannot have this coupling.
    """
    if isinstance(entry, Reversible):
        return entry
    plain_list = isinstance(entry, nn.ModuleList) and type(entry).forward is nn.ModuleList.forward
    if isinstance(entry, nn.Module) and not plain_list:  # a sequence made by `reversible` is a function as well
        return WRAPPERS[coupling].block(entry, coefficients)
    parts = list(entry) if isinstance(entry, Sequence | nn.ModuleList) else []
    if len(parts) != 2 or not all(isinstance(part, nn.Module) for part in parts):  # noqa: PLR2004  F and G
        raise TypeError(
            "each entry must be a module F, a pair of modules (F, G) or a petra_graph.blocks.Reversible "
            f"(got {type(entry).__name__})"
        )
    if coupling != "additive":
        raise ValueError(
            f'pairs of functions are coupled additively; with coupling = "{coupling}" give single functions'
        )
    return TwoFunctions(*parts)
