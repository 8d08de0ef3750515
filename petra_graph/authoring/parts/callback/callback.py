import time

from petra_graph.plugins import Callback


class TimeLimit(Callback):
    """Counts seconds, over interruptions."""

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
