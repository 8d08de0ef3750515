"""The loggers that come with the package, as declarations."""

from __future__ import annotations

from typing import Literal

from petra_graph.plugins import LoggerDeclaration, declares, option

JSONL = LoggerDeclaration(
    summary="The run's own `metrics.jsonl`, which is always written: alone in the list, it means no other logger.",
    build="petra_graph.catalog.loggers.files:MetricsFile",
)
TENSORBOARD = LoggerDeclaration(
    summary="Scalars for TensorBoard, in `tensorboard/` of the run's directory.",
    build="petra_graph.catalog.loggers.tensorboard:tensorboard",
    requires="tensorboard",
    install="pip install 'petra-graph[tensorboard]'",
)
CSV = LoggerDeclaration(
    summary="`metrics.csv` in the run's directory: epoch, step, name, value.",
    build="petra_graph.catalog.loggers.files:CsvFile",
)


@declares(
    LoggerDeclaration,
    "petra_graph.catalog.loggers.trackers:MlflowRun",
    requires="mlflow",
    install="pip install 'petra-graph[mlflow]'",
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
    "petra_graph.catalog.loggers.trackers:WandbRun",
    requires="wandb",
    install="pip install 'petra-graph[wandb]'",
)
class WandbOptions:
    """A run of Weights & Biases, with the specification as its configuration.

    By default nothing leaves the run's directory.
    """

    project: str = option("the project's name", default="petra-graph")
    mode: Literal["offline", "online"] = option(
        '"offline" writes `wandb/` in the run\'s directory, which `wandb sync` uploads', default="offline"
    )
