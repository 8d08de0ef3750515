"""What passes between the processes of a run while it trains: status, requests to stop, cuts, failures."""

from __future__ import annotations

from petra_graph.runtime.control.failure import OperationStatus


class Supervisor:
    """That of a run in one process; one of several has a watchdog, which tells the others."""

    watches = False
    """Whether the status and failures are looked at during operations."""

    def __init__(self) -> None:
        self.status: OperationStatus | None = None
        """What this process does or waits for; set by the scheduler."""
        self.starting = False
        """Whether this process prepares the run: there are no stages yet that could stop."""
        self.stop_signal: str | None = None
        """The signal by which a user, anywhere, asked to stop."""
        self.stop_at: int | None = None
        """Forwards after which every stage stops."""
        self.announced_cuts: set[int] = set()
        """Forwards before which there is a cut that no plan fixes, as far as this process knows."""
        self.agreed_cuts: set[int] = set()
        """Those of which every process knows; the process that hosts the first stage learns it."""

    def ask(self, signal_name: str) -> None:
        """Ask all processes to stop between two micro-batches; may be called by a signal handler."""
        self.stop_signal = self.stop_signal or signal_name

    def stop_after(self, forwards: int) -> None:
        """Decide where all stages stop; only the process that hosts the first stage calls this."""
        self.stop_at = forwards

    def announce_cut(self, at: int) -> None:
        """Tell every process of a cut; only the process that hosts the first stage calls this."""
        self.announced_cuts.add(at)
        self.agreed_cuts.add(at)

    def check(self) -> None:
        """Raise `Failed` if the run has failed elsewhere."""

    def sleep(self) -> None:
        """Sleep until a message, room, a request or a failure has come; nothing can come from elsewhere here."""
        cause = "a bug in the schedule, or a checkpoint that another program has changed"
        raise RuntimeError(f"every stage waits ({self.status}): {cause}")
