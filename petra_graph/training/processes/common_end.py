"""The end of a process whose run has written everything: the loss of another process is no failure from here on.

    rank 0    has measured ------- waits for "complete" --------------- all have arrived, or a few seconds ---- ends
    rank 1    has measured ------- waits for "complete" ------ X        killed: the run is complete nevertheless
    records   says that all have, writes the summary, says "complete" ------ all have arrived --------------- ends

The watchdog watches until the end, so that nobody waits for a process that has gone.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

from attrs import field, frozen

from petra_graph.errors import Interrupted, SpecError, printable
from petra_graph.record.recorded_run import read_json
from petra_graph.runtime.control.awake_time import AwakeTime
from petra_graph.runtime.control.run_store import COMPLETE, StoreGone
from petra_graph.runtime.control.start_up import hard_exit
from petra_graph.runtime.control.stop_signals import stop_requests
from petra_graph.runtime.control.watchdog import Watchdog
from petra_graph.runtime.control.world import World

_END_SECONDS = 5.0
"""The longest that a process waits for the others to arrive at the end."""
_LOOK_SECONDS = 0.005


@frozen(kw_only=True)
class CommonEnd:
    """The end of one process; a request to stop ends its waits."""

    world: World
    watchdog: Watchdog
    directory: Path | None
    """Of the run, as this process sees it."""
    records: int
    """The rank of the process that records."""
    interrupted: bool
    asked: list[str] = field(factory=list)
    """Requests to stop that have arrived meanwhile."""

    def leave(self) -> None:
        """Return when all processes have arrived here, or will not arrive any more.

        Raises:
            Failed: the run has failed before it was complete.
        """
        code, lost = Interrupted.exit_code if self.interrupted else 0, None
        with stop_requests(self.asked.append, lambda: hard_exit(code), ends_process=True):
            try:
                self._wait_for_completion()
                self.world.launch.set(COMPLETE, code)
                self._wait_for_others()
            except StoreGone as error:
                if not self._has_summary():
                    raise
                lost = self.watchdog.without_store(error)
            self.watchdog.close()
        lost = self.watchdog.failure or lost
        if lost is not None and self.world.rank == self.records:
            sys.stderr.write(printable(f"the run is complete, although {lost.problems[0][0]}\n"))
        self.world.shutdown(self.world.store, missing=int(lost is not None))

    def _wait_for_completion(self) -> None:
        """Say in the process that records that all is written; return in the others when it is."""
        store, watchdog = self.world.store, self.watchdog
        if self.world.rank == self.records:
            store.set(COMPLETE, True)
        while store.get(COMPLETE) is None:
            lost = watchdog.failure is not None and watchdog.failure.rank == self.records
            if lost and self._has_summary():
                return
            if lost or store.get("reported"):
                watchdog.check()
            time.sleep(_LOOK_SECONDS)

    def _wait_for_others(self) -> None:
        store, waits = self.world.store, AwakeTime()
        store.set(f"arrived/{self.world.rank}", True)
        names = [f"arrived/{rank}" for rank in range(self.world.size)]
        while not all(store.get(name) for name in names):
            if self.watchdog.failure is not None or self.asked or waits.seconds > _END_SECONDS:
                return
            time.sleep(_LOOK_SECONDS)

    def _has_summary(self) -> bool:
        """Whether the run's last file is there, which a run under way does not have."""
        with suppress(SpecError):
            summary = None if self.directory is None else read_json(self.directory / "summary.json", dict)
            return summary is not None and summary.get("status") != "failed"
        return False
