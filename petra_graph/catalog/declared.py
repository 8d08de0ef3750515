"""The losses, metrics, loggers and callbacks that come with the package, as declarations: this imports no torch."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from petra_graph.plugins import (
    AtLeast,
    CallbackDeclaration,
    Each,
    Length,
    LessThan,
    LoggerDeclaration,
    LossDeclaration,
    MetricDeclaration,
    declares,
    option,
)


@declares(LossDeclaration, "petra_graph.catalog.losses:CrossEntropy", logits=True)
class CrossEntropyOptions:
    """Mean cross-entropy of logits against class indices; counts top-1 and, of more than five classes, top-5."""

    label_smoothing: float = option(
        "share of the target that is spread evenly over all classes", default=0.0, validator=[AtLeast(0), LessThan(1)]
    )


MEAN_SQUARED_ERROR = LossDeclaration(
    summary="Mean squared error against targets of the output's shape, or against class indices as one-hot vectors.",
    build="petra_graph.catalog.losses:MeanSquaredError",
)


@frozen(kw_only=True)
class F1Options:
    """The average over the classes."""

    average: Literal["macro", "micro", "weighted"] = option(
        "mean over the classes; of all samples as one class; or mean weighted by the classes' samples", default="macro"
    )


F1 = MetricDeclaration(
    summary="F1 score of the predicted classes; a class that is neither a target nor predicted does not count.",
    options=F1Options,
    build="petra_graph.catalog.metrics:F1",
    share=True,
)
MEAN_IOU = MetricDeclaration(
    summary="Mean over the classes of intersection over union, as of pixels; a class that is neither a target nor predicted does not count.",
    build="petra_graph.catalog.metrics:MeanIou",
    share=True,
)
AUC = MetricDeclaration(
    summary="Area under the ROC curve, each class against the rest, mean over the classes that divide the targets; keeps all outputs on the CPU.",
    build="petra_graph.catalog.metrics:Auc",
    share=True,
)
PERPLEXITY = MetricDeclaration(
    summary="Exponential of the mean cross-entropy of the targets, as of tokens.",
    build="petra_graph.catalog.metrics:Perplexity",
    better="lower",
)


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


def _evaluated(_: object, __: object, value: str | None) -> None:
    if value is not None and not value.startswith(("train/", "validation/", "test/")):
        raise ValueError('must begin with "train/", "validation/" or "test/", as in "validation/top1"')


@declares(CallbackDeclaration, "petra_graph.catalog.callbacks.early_stopping:EarlyStopping", changes="length")
class EarlyStoppingOptions:
    """Ends the training after an epoch, once a metric has not become better for some epochs."""

    metric: str | None = option(
        'metric of an epoch, as in "validation/top1" or "test/top1"; default: the loss of the evaluations, which read the validation data '
        "or, without `data.validation`, the test data",
        default=None,
        validator=_evaluated,
    )
    direction: Literal["largest", "smallest"] | None = option(
        "which value is best; default: the smallest loss, of a listed metric what it declares, the largest of any other",
        default=None,
    )
    patience: int = option("epochs without a better value", default=5, unit="epochs", validator=AtLeast(1))
    min_delta: float = option("least difference that makes a value better", default=0.0, validator=AtLeast(0))


@declares(CallbackDeclaration, "petra_graph.catalog.callbacks.ema:Ema")
class EmaOptions:
    """Exponential moving average of all parameters, written as `weights-ema.safetensors` at the end."""

    decay: float = option("share of the average that is kept", default=0.999, validator=[AtLeast(0), LessThan(1)])
    every: int = option("updates of a stage between two steps of its average", default=1, validator=AtLeast(1))


@declares(CallbackDeclaration, "petra_graph.catalog.callbacks.profiler:Profiler")
class ProfilerOptions:
    """Records a window of torch.profiler in the process of the head, as `trace.json` for Perfetto or Chrome."""

    first: int = option("first micro-batch of the window, counted from 1", default=11, validator=AtLeast(1))
    last: int = option("last micro-batch of the window", default=20, validator=AtLeast(1))

    def __attrs_post_init__(self) -> None:
        if self.last < self.first:
            raise ValueError(f"last must be at least first (got {self.last}, and first = {self.first})")


@declares(CallbackDeclaration, "petra_graph.catalog.callbacks.predictions:Predictions")
class PredictionsOptions:
    """Writes the head's outputs for some samples at every evaluation, as lines of `predictions.jsonl`."""

    indices: tuple[int, ...] = option(
        "positions in the data that evaluations read, counted from 0; those that an evaluation does not reach are left out",
        default=(0, 1, 2, 3),
        validator=[Length(at_least=1), Each(AtLeast(0))],
    )
