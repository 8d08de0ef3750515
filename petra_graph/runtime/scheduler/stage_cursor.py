"""A stage between two drains: what it does next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from attrs import define

from petra_graph.errors import Interrupted, PetraGraphError, RunFailed
from petra_graph.executor.stage import StageExecutor
from petra_graph.program.schedule import Action, order
from petra_graph.runtime.control.watchdog import Failed


@define
class StageCursor:
    """One stage's next operation."""

    executor: StageExecutor
    device: torch.device
    actions: Iterator[Action]
    next: Action | None = None

    def advance(self) -> None:
        """Go on to the operation after this one."""
        self.next = next(self.actions, None)


class ExecutionOrder:
    """The order in which some stages take turns, where they may not do just what is ready."""

    def __init__(self, actions: Iterator[tuple[int, Action]], halts: Callable[[int, Action], bool]) -> None:
        """ExecutionOrder up.

        Args:
            actions: of these stages, each with its stage's number.
            halts: whether a stage stops before an operation; it does nothing after that.
        """
        self._actions, self._halts = actions, halts
        self._halted: set[int] = set()
        self._first = next(actions, None)

    def first(self) -> tuple[int, Action] | None:
        """Return the operation whose turn it is."""
        while self._first is not None:
            stage, action = self._first
            if stage not in self._halted and not self._halts(stage, action):
                break
            self._halted.add(stage)
            self.advance()
        return self._first

    def advance(self) -> None:
        """Let the next one come."""
        self._first = next(self._actions, None)


def cursor_of(executor: StageExecutor, micro_batches: range) -> StageCursor:
    """Return a stage before its first operation on `micro_batches`."""
    program = executor.program
    actions = order(program.depth, micro_batches, program.accumulation, program.flush)
    turn = StageCursor(executor, torch.device(program.device), actions)
    turn.advance()
    return turn


@contextmanager
def with_error_context(executor: StageExecutor, doing: str) -> Iterator[None]:
    """Let whatever an operation raises say which operation it was.

    Raises:
        RunFailed: instead of any error but those that say where they come from.
    """
    try:
        yield
    except (PetraGraphError, Interrupted, Failed):
        raise
    except Exception as error:
        program = executor.program
        message = (
            f"stage {program.index} ({', '.join(program.nodes)}) failed in the {doing}: {type(error).__name__}: {error}"
        )
        raise RunFailed(message, hint="failure.txt in the run directory has the traceback") from error
