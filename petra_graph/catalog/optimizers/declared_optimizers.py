"""The optimizers that come with the package, as declarations.

Weight decay applies to all parameters but biases and those of a normalisation (Goyal et al. 2017, section 5.3).
"""

from __future__ import annotations

from typing import Any, Literal

from petra_graph.plugins import (
    AtLeast,
    AtMost,
    Each,
    GreaterThan,
    Length,
    LessThan,
    OptimizerDeclaration,
    declares,
    option,
)

_HERE = "petra_graph.catalog.optimizers"
_LARGEST = AtMost(1e30)
"""Of a factor of steps: some products of a larger one have no place in float32."""
LARGEST_BETA1 = 0.99
"""Of NAdam by stage: where the delay is largest."""


def _lr(default: float) -> Any:
    return option(
        "base learning rate; schedule and scaling multiply it", default=default, validator=[AtLeast(0), _LARGEST]
    )


def _momentum(default: float = 0.9) -> Any:
    return option("share of the last step that is kept", default=default, validator=[AtLeast(0), LessThan(1)])


def _betas(default: tuple[float, float] = (0.9, 0.999)) -> Any:
    return option(
        "share of the mean gradient, and of its mean square, that is kept",
        default=default,
        validator=[Length(2), Each(AtLeast(0), LessThan(1))],
    )


def _eps() -> Any:
    return option("added to the root of the mean square", default=1e-8, validator=[GreaterThan(0), _LARGEST])


def _weight_decay(default: float) -> Any:
    return option("weight decay, none on normalisation and biases", default=default, validator=[AtLeast(0), _LARGEST])


def _expect_nesterov(options: Any) -> None:
    if options.nesterov and not options.momentum:
        raise ValueError("nesterov = true needs a momentum above 0 (got momentum = 0); set nesterov = false")


def _nesterov() -> Any:
    return option("look ahead along the momentum, which must be above 0", default=True)


@declares(OptimizerDeclaration, f"{_HERE}.torch_optimizers:sgd")
class SgdOptions:
    """Stochastic gradient descent with (Nesterov) momentum."""

    lr: float = _lr(0.1)
    momentum: float = _momentum()
    nesterov: bool = _nesterov()
    weight_decay: float = _weight_decay(0.0)

    def __attrs_post_init__(self) -> None:
        _expect_nesterov(self)


@declares(OptimizerDeclaration, f"{_HERE}.torch_optimizers:adam")
class AdamOptions:
    """Adam, weight decay added to the gradient.

    The weight decay is added to the gradient, and so scaled with it (AdamW's is not).
    """

    lr: float = _lr(1e-3)
    betas: tuple[float, ...] = _betas()
    eps: float = _eps()
    weight_decay: float = _weight_decay(0.0)


@declares(OptimizerDeclaration, f"{_HERE}.torch_optimizers:adam")
class AdamWOptions(AdamOptions):
    """Adam with decoupled weight decay.

    The weight decay shrinks parameters by lr * weight_decay, beside the gradient's step.
    """

    weight_decay: float = _weight_decay(0.01)


@declares(OptimizerDeclaration, f"{_HERE}.torch_optimizers:nadam")
class NadamOptions:
    """Adam with Nesterov momentum and decoupled weight decay.

    With betas = [0.99, 0.999] it is the optimizer of asynchronous pipelines of Ajanthan et al. 2025 (arXiv:2505.01099).
    """

    lr: float = _lr(2e-3)
    betas: tuple[float, ...] = _betas()
    eps: float = _eps()
    weight_decay: float = _weight_decay(0.0)
    momentum_decay: float = option(
        "how fast the momentum rises from half its value: by 0.96 ** (u * momentum_decay)",
        default=0.004,
        validator=AtLeast(0),
    )
    beta1_by_stage: bool = option("raise the first beta towards 0.99 with the stage's delay", default=False)

    def __attrs_post_init__(self) -> None:
        if self.beta1_by_stage and self.betas[0] > LARGEST_BETA1:
            raise ValueError(
                f"beta1_by_stage = true needs a first beta of at most {LARGEST_BETA1} (got {self.betas[0]}); set it to false"
            )


@declares(OptimizerDeclaration, f"{_HERE}.muon:muon")
class MuonOptions:
    """Orthogonal momentum for the matrices within the network, and AdamW for embeddings, heads and vectors.

    Kernels of convolutions are matrices [out, in * height * width]. Weight decay is decoupled.
    """

    lr: float = _lr(1e-3)
    momentum: float = _momentum(0.95)
    nesterov: bool = _nesterov()
    weight_decay: float = _weight_decay(0.1)
    adjust_lr: Literal["match_rms_adamw", "original"] = option(
        "how lr becomes a matrix's rate: for steps as large as AdamW's, or as the authors have it, whose lr is about 0.02",
        default="match_rms_adamw",
    )
    ns_steps: int = option(
        "Newton-Schulz iterations that make a step orthogonal", default=5, validator=[AtLeast(1), AtMost(99)]
    )
    betas: tuple[float, ...] = _betas()
    eps: float = _eps()

    def __attrs_post_init__(self) -> None:
        _expect_nesterov(self)


@declares(OptimizerDeclaration, f"{_HERE}.soap:soap")
class SoapOptions:
    """Adam in the eigenbases of the mean G G' and G' G of matrices and kernels, and AdamW for vectors.

    Kernels of convolutions are matrices [out, in * height * width]. Weight decay is decoupled.
    """

    lr: float = _lr(3e-3)
    betas: tuple[float, ...] = _betas((0.95, 0.95))
    eps: float = _eps()
    weight_decay: float = _weight_decay(0.01)
    precondition_frequency: int = option(
        "steps between two refreshes of the bases", default=10, validator=AtLeast(1), unit="updates"
    )
    max_precond_dim: int = option(
        "longest side of a matrix that has a basis; longer ones have the identity", default=10_000, validator=AtLeast(1)
    )
