"""The callbacks that come with the package, as declarations."""

from __future__ import annotations

from typing import Literal

from petra_graph.plugins import AtLeast, CallbackDeclaration, Each, Length, LessThan, declares, option


def _evaluated(_: object, __: object, value: str) -> None:
    if not value.startswith(("train/", "test/")):
        raise ValueError('must begin with "train/" or "test/", as in "test/top1"')


@declares(CallbackDeclaration, "petra_graph.catalog.callbacks.early_stopping:EarlyStopping", changes="length")
class EarlyStoppingOptions:
    """Ends the training after an epoch, once a metric has not become better for some epochs."""

    metric: str = option('metric of an epoch, as in "test/top1"', default="test/loss", validator=_evaluated)
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
    """Writes the head's outputs for some test samples at every evaluation, as lines of `predictions.jsonl`."""

    indices: tuple[int, ...] = option(
        "positions in the test data, counted from 0; those that an evaluation does not reach are left out",
        default=(0, 1, 2, 3),
        validator=[Length(at_least=1), Each(AtLeast(0))],
    )
