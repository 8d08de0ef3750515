"""A callback that lets a run take its time, without work."""

from __future__ import annotations

import time

from petra_graph.plugins import Callback

PAUSE_SECONDS = 0.02
"""After each micro-batch."""


class Slowed(Callback):
    def __init__(self) -> None:
        pass

    def trained(self, epoch: int, done: int, means: object) -> None:
        time.sleep(PAUSE_SECONDS)
