"""What the entry points name: the corrected optimizer, the probe and the trackers, as declarations without torch."""

from __future__ import annotations

from typing import Any, Literal, cast

import attrs

from petra_graph.catalog.optimizers.declared_optimizers import AdamOptions, AdamWOptions, MuonOptions, SgdOptions
from petra_graph.plugins import (
    AtLeast,
    CallbackDeclaration,
    LoggerDeclaration,
    OptimizerDeclaration,
    declares,
    option,
)

_INNER: dict[str, type[Any]] = {"sgd": SgdOptions, "adam": AdamOptions, "adamw": AdamWOptions, "muon": MuonOptions}
_OWN = ("optimizer", "correction", "predict", "correct_discrepancy")


@declares(OptimizerDeclaration, "petra_graph_studies.corrected:corrected")
class CorrectedOptions:
    """Another optimizer with corrections of late gradients; without delay, each step is that one's own, to the bit.

    The options that only some optimizers have are those of the one that `optimizer` names, with its defaults.
    """

    optimizer: Literal["sgd", "adam", "adamw", "muon"] = option("the optimizer that is corrected", default="sgd")
    lr: float = option("base learning rate; schedule and scaling multiply it", default=0.1, validator=AtLeast(0))
    correction: Literal["none", "spike", "error-feedback"] = option(
        'what makes up for the delay of gradients: "spike" makes the steps that a late gradient has missed, at once; "error-feedback" adds '
        "the difference from the step before, for a delay of at most 1 update",
        default="none",
    )
    predict: bool = option("compute forwards at the weights that momentum predicts for their backwards", default=False)
    correct_discrepancy: bool = option(
        "compute backwards at an estimate of the weights that their forwards had", default=False
    )
    momentum: float | None = option("of sgd and muon", default=None)
    nesterov: bool | None = option("of sgd and muon", default=None)
    betas: tuple[float, ...] | None = option("of adam, adamw and muon", default=None)
    eps: float | None = option("of adam, adamw and muon", default=None)
    weight_decay: float | None = option("none on normalisation and biases", default=None)
    adjust_lr: Literal["match_rms_adamw", "original"] | None = option("of muon", default=None)
    ns_steps: int | None = option("of muon", default=None)

    @property
    def inner(self) -> Any:
        """The options of the optimizer that is corrected.

        Raises:
            ValueError: some are wrong, or it has none of that name.
        """
        cls = _INNER[self.optimizer]
        given = attrs.asdict(
            cast("Any", self), filter=lambda field, value: field.name not in _OWN and value is not None
        )
        known = [field.name for field in attrs.fields(cls)]
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"{self.optimizer} has no option {unknown[0]!r}; it has {', '.join(known)}")
        return cls(**given)

    def __attrs_post_init__(self) -> None:
        inner = self.inner
        if self.predict and self.correction == "error-feedback":
            raise ValueError(
                'predict = true expects steps without correction = "error-feedback"; set predict = false, or correction = "spike"'
            )
        if self.predict and self.correct_discrepancy:
            raise ValueError(
                "predict = true computes forwards at the weights of their backwards, and correct_discrepancy = true backwards at the "
                "weights of their forwards; set one of them to false"
            )
        if self.predict and self.optimizer == "muon":
            raise ValueError("predict = true is for sgd, adam and adamw (got optimizer = 'muon'); leave it out")
        momentum = inner.betas[0] if self.optimizer.startswith("adam") else inner.momentum
        if (self.predict or self.correction == "spike") and not momentum:
            raise ValueError(
                'predict = true and correction = "spike" need a momentum, or a first beta, above 0 (got 0)'
            )


@declares(CallbackDeclaration, "petra_graph_studies.probe:ProbeCallback")
class ProbeOptions:
    """Compares the gradient that trains each stage with the delayed one and the end-to-end one, as metrics `probe/...`.

    It changes nothing of the run, and needs all stages in one process.
    """

    per_epoch: int = option(
        "micro-batches of an epoch to probe (the paper: 15); each costs at most one plain forward and backward of the network for each "
        "stage, and one more",
        default=15,
        validator=AtLeast(1),
    )


@declares(
    LoggerDeclaration,
    "petra_graph_studies.trackers:MlflowRun",
    requires="mlflow",
    install="pip install 'petra-graph-studies[mlflow]'",
)
class MlflowOptions:
    """A run of MLflow, with the specification as its parameters.

    By default nothing leaves the run's directory.
    """

    tracking_uri: str | None = option(
        "MLflow's store; default: the file `mlflow.db` in the run's directory", default=None
    )
    experiment: str = option("the experiment's name", default="petra-graph")


@declares(
    LoggerDeclaration,
    "petra_graph_studies.trackers:WandbRun",
    requires="wandb",
    install="pip install 'petra-graph-studies[wandb]'",
)
class WandbOptions:
    """A run of Weights & Biases, with the specification as its configuration.

    By default nothing leaves the run's directory.
    """

    project: str = option("the project's name", default="petra-graph")
    mode: Literal["offline", "online"] = option(
        '"offline" writes `wandb/` in the run\'s directory, which `wandb sync` uploads', default="offline"
    )
