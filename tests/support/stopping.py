"""A listener that asks the run to stop at some call, as Ctrl-C would."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from petra_graph.plugins.callback import EpochEnded, Listener


class StopAt(Listener):
    """Asks once: at "trained 2/5", "evaluating 1" or "ended 1"."""

    def __init__(self, call: str) -> None:
        self.call = call

    def trained(self, epoch: int, micro_batches: int, _means: Mapping[str, float]) -> None:
        self._seen(f"trained {epoch}/{micro_batches}")

    def evaluating(self, epoch: int) -> None:
        self._seen(f"evaluating {epoch}")

    def epoch_ended(self, report: EpochEnded) -> None:
        self._seen(f"ended {report.epoch}")

    def _seen(self, call: str) -> None:
        if call == self.call:
            os.kill(os.getpid(), signal.SIGINT)
