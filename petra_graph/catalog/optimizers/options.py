"""Options that several optimizers have.

Weight decay applies to all parameters but biases and those of a normalisation (Goyal et al. 2017, section 5.3).
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

from petra_graph.plugins import AtLeast, AtMost, Each, GreaterThan, Length, LessThan

_LARGEST = AtMost(1e30)
"""Of a factor of steps: some products of a larger one have no place in float32."""
Rate = Annotated[float, "base learning rate; schedule and scaling multiply it", AtLeast(0), _LARGEST]
Momentum = Annotated[float, "share of the last step that is kept", AtLeast(0), LessThan(1)]
Nesterov = Annotated[bool, "look ahead along the momentum, which must be above 0"]
Betas = Annotated[
    tuple[float, ...],
    "share of the mean gradient, and of its mean square, that is kept",
    Length(2),
    Each(AtLeast(0), LessThan(1)),
]
Eps = Annotated[float, "added to the root of the mean square", GreaterThan(0), _LARGEST]
Decay = Annotated[float, "weight decay, none on normalisation and biases", AtLeast(0), _LARGEST]


def bounds(option: Any) -> tuple[Any, ...]:
    """Return the bounds of one of these, for an optional value."""
    return tuple(one for one in get_args(option)[1:] if not isinstance(one, str))


def expect_momentum(momentum: float, *, nesterov: bool) -> None:
    """Refuse Nesterov momentum without momentum."""
    if nesterov and not momentum:
        raise ValueError("nesterov = true needs a momentum above 0 (got momentum = 0); set nesterov = false")
