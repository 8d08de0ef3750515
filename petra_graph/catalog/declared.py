"""The losses, metrics, loggers and callbacks that come with the package, as declarations: this imports no torch."""

from __future__ import annotations

from typing import Literal

from petra_graph.plugins import (
    AtLeast,
    CallbackDeclaration,
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
