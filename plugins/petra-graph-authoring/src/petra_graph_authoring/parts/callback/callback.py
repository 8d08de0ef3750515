import time

from attrs import frozen
from petra_graph.plugins import Callback, GreaterThan, option


class TimeLimit(Callback):
    """Ends the training after the epoch in which its time is over."""

    changes = "length"

    @frozen(kw_only=True)
    class Options:
        """The time."""

        seconds: float = option(
            "longest time of a training, with what it took before an interruption",
            default=3600.0,
            unit="seconds",
            validator=GreaterThan(0),
        )

    def __init__(self, options):
        self.limit = options.seconds
        self.before = 0.0

    def started(self, run):
        self.began = time.monotonic()

    def stops(self):
        return f"{self.limit:g} seconds are over" if self.state() > self.limit else ""

    def state(self):
        return self.before + time.monotonic() - self.began

    def restore(self, state):
        self.before = state
