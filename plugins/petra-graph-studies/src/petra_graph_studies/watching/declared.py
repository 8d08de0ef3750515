"""Callbacks and loggers, as declarations: this imports no torch."""

from __future__ import annotations

from typing import Literal

from petra_graph.plugins import AtLeast, CallbackDeclaration, Each, Length, LoggerDeclaration, declares, option


@declares(
    LoggerDeclaration,
    "petra_graph_studies.watching.trackers:MlflowRun",
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
    "petra_graph_studies.watching.trackers:WandbRun",
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


@declares(CallbackDeclaration, "petra_graph_studies.watching.profiler:Profiler")
class ProfilerOptions:
    """Records a window of torch.profiler in the process of the head, as `trace.json` for Perfetto or Chrome."""

    first: int = option("first micro-batch of the window, counted from 1", default=11, validator=AtLeast(1))
    last: int = option("last micro-batch of the window", default=20, validator=AtLeast(1))

    def __attrs_post_init__(self) -> None:
        if self.last < self.first:
            raise ValueError(f"last must be at least first (got {self.last}, and first = {self.first})")


@declares(CallbackDeclaration, "petra_graph_studies.watching.predictions:Predictions")
class PredictionsOptions:
    """Writes the head's outputs for some samples at every evaluation, as lines of `predictions.jsonl`."""

    indices: tuple[int, ...] = option(
        "positions in the data that evaluations read, counted from 0; those that an evaluation does not reach are left out",
        default=(0, 1, 2, 3),
        validator=[Length(at_least=1), Each(AtLeast(0))],
    )
