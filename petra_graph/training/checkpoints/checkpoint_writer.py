"""A thread that writes the copies of one checkpoint after another, so that the training continues meanwhile.

Decision: at most one checkpoint is being written. If a stage comes to the next cut earlier, it waits, so that copies need no
more than the memory of one checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from queue import Queue
from threading import Condition, Thread
from typing import Any

from petra_graph.executor.stage_state import SavedTensors
from petra_graph.record.checkpoint import StageFile

Write = Callable[[int, SavedTensors], StageFile]
Finish = Callable[[int, Sequence[StageFile], Mapping[str, Any] | None], None]


class CheckpointWriter:
    """Writes the copies of one checkpoint after another, in a thread of its own; every method raises what the thread met."""

    def __init__(self, write: Write, finish: Finish, *, stages: int) -> None:
        """Begin with nothing to write.

        Args:
            write: writes the copy of one stage at a cut.
            finish: called with a cut's files of this process, and with the training's position if the head is here.
            stages: how many this process hosts.
        """
        self._write_stage, self._finish, self._stages = write, finish, stages
        self._queue: Queue[tuple[int, SavedTensors] | None] = Queue()
        self._changed = Condition()
        self._reached: dict[int, int] = {}
        """The latest cut to which each stage has come."""
        self._handed: dict[int, int] = {}
        """Stages of each checkpoint under way whose copies are complete."""
        self._files: dict[int, list[StageFile]] = {}
        self._error: BaseException | None = None
        self._thread: Thread | None = None

    def admit(self, at: int, stage: int) -> bool:
        """Wait until a stage may copy its state at a cut; return whether it has not done so before.

        If all stages have passed an earlier cut, its checkpoint is written first; nothing after a cut is needed for that, so
        no process can wait for ever.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._complete(but=at))
            self.check()
            before, self._reached[stage] = self._reached.get(stage), at
            return before != at

    def put(self, at: int, saved: SavedTensors) -> None:
        """Have the thread write the copy of a stage at a cut."""
        with self._changed:
            self.check()
            self._handed[at] = self._handed.get(at, 0) + 1
        if self._thread is None:
            self._thread = Thread(target=self._serve, name="checkpoints", daemon=True)
            self._thread.start()
        self._queue.put((at, saved))

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Return when all is written; more may be written afterwards."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self.check()

    def _serve(self) -> None:
        try:
            positions: dict[int, Mapping[str, Any]] = {}
            while (item := self._queue.get()) is not None:
                at, saved = item
                file = self._write_stage(at, saved)
                if "position" in saved.facts:
                    positions[at] = saved.facts["position"]
                with self._changed:
                    files = self._files.setdefault(at, [])
                    files.append(file)
                    self._changed.notify_all()
                del item, saved
                if len(files) == self._stages:
                    self._finish(at, files, positions.pop(at, None))
                    with self._changed:
                        del self._files[at], self._handed[at]
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  the training's thread raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _complete(self, but: int) -> list[int]:
        return [at for at, handed in self._handed.items() if handed == self._stages and at != but]
