"""The optimizers that come with the package, as declarations.

Weight decay applies to all parameters but biases and those of a normalisation (Goyal et al. 2017, section 5.3).
"""

from __future__ import annotations

from typing import Any

from petra_graph.plugins import AtLeast, Each, GreaterThan, Length, LessThan, OptimizerDeclaration, declares, option

_BUILDERS = "petra_graph.catalog.optimizers.builders"


def _lr(default: float) -> Any:
    return option("base learning rate; schedule and scaling multiply it", default=default, validator=AtLeast(0))


def _momentum() -> Any:
    return option("share of the last step that is kept", default=0.9, validator=[AtLeast(0), LessThan(1)])


def _weight_decay(default: float) -> Any:
    return option("weight decay, none on normalisation and biases", default=default, validator=AtLeast(0))


@declares(OptimizerDeclaration, f"{_BUILDERS}:sgd")
class SgdOptions:
    """Stochastic gradient descent with (Nesterov) momentum."""

    lr: float = _lr(0.1)
    momentum: float = _momentum()
    nesterov: bool = option("look ahead along the momentum, which must be above 0", default=True)
    weight_decay: float = _weight_decay(0.0)

    def __attrs_post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov = true needs a momentum above 0 (got momentum = 0); set nesterov = false")


@declares(OptimizerDeclaration, f"{_BUILDERS}:adam")
class AdamOptions:
    """Adam, weight decay added to the gradient.

    The weight decay is added to the gradient, and so scaled with it (AdamW's is not).
    """

    lr: float = _lr(1e-3)
    betas: tuple[float, ...] = option(
        "share of the mean gradient, and of its mean square, that is kept",
        default=(0.9, 0.999),
        validator=[Length(2), Each(AtLeast(0), LessThan(1))],
    )
    eps: float = option("added to the root of the mean square", default=1e-8, validator=GreaterThan(0))
    weight_decay: float = _weight_decay(0.0)


@declares(OptimizerDeclaration, f"{_BUILDERS}:adam")
class AdamWOptions(AdamOptions):
    """Adam with decoupled weight decay.

    The weight decay shrinks parameters by lr * weight_decay, beside the gradient's step.
    """

    weight_decay: float = _weight_decay(0.01)


@declares(OptimizerDeclaration, f"{_BUILDERS}:lars")
class LarsOptions:
    """Momentum with a learning rate for each tensor, in proportion to its norm, for large batches.

    Each decayed tensor's step is in proportion to its own norm.
    """

    lr: float = _lr(1.0)
    momentum: float = _momentum()
    trust: float = option(
        "the paper's eta: the length of a step as a share of the tensor's norm", default=0.001, validator=GreaterThan(0)
    )
    weight_decay: float = _weight_decay(0.0)
