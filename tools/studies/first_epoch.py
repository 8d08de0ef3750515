"""A training that is only to show its first epoch."""

from __future__ import annotations

from petra_graph.plugins import Callback, CallbackDeclaration, EpochEnded, declares, option


@declares(CallbackDeclaration, "first_epoch:FirstEpochs", changes="length")
class FirstEpochsOptions:
    """Ends the training after its first epochs, with the learning rates of all of them."""

    epochs: int = option("how many", default=1)


class FirstEpochs(Callback):
    """Counts epochs."""

    def __init__(self, options: FirstEpochsOptions) -> None:
        self._options = options
        self._epoch = 0

    def epoch_ended(self, report: EpochEnded) -> None:
        self._epoch = report.epoch

    def stops(self) -> str:
        return "the first epochs are enough" if self._epoch >= self._options.epochs else ""
