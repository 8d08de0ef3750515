"""A stage's place in its order of operations, the device of these, and the failure of one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from attrs import define, field

from petra_graph.errors import Interrupted, PetraGraphError, RunFailed
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.program.cut import Cut
from petra_graph.program.schedule import Action, Verb, program_order
from petra_graph.runtime.control.run_store import StoreGone
from petra_graph.runtime.control.watchdog import Failed


@define
class StageCursor:
    """One stage's next operation."""

    executor: StageExecutor
    device: torch.device
    actions: Iterator[Action]
    next: Action | None = None
    waits: Mapping[Verb, Sequence[Callable[[], object]]] = field(factory=dict)
    """Each returns something true when a message, or room for one, is there."""
    index: int = field(init=False)
    """Of the stage, from 1."""
    on_device: AbstractContextManager[object] | None = field(init=False)
    """The context of the stage's operations; None: they need none."""

    def __attrs_post_init__(self) -> None:
        self.index, self.on_device = self.executor.program.index, current_device(self.device)

    def advance(self) -> None:
        self.next = next(self.actions, None)


def training_cursor(executor: StageExecutor, cut: Cut) -> StageCursor:
    """Return a stage before its first operation behind a cut."""
    program = executor.program
    actions = program_order(program, cut.micro_batches, cut.filled)
    if cut.at > cut.micro_batches.start:
        actions = (action for action in actions if not cut.precedes(program, action))
    return _cursor(executor, actions)


def evaluation_cursor(executor: StageExecutor, batches: range) -> StageCursor:
    """Return a stage before its forward of the first batch."""
    return _cursor(executor, (Action("forward", batch) for batch in batches))


def _cursor(executor: StageExecutor, actions: Iterator[Action]) -> StageCursor:
    cursor = StageCursor(executor, torch.device(executor.program.device), actions)
    cursor.advance()
    return cursor


def current_device(device: torch.device) -> AbstractContextManager[object] | None:
    """Return a context in which a stage's GPU is torch's current one, on which kernels of other packages are launched; None for a processor."""
    return torch.cuda.device(device) if device.type == "cuda" else None


def named_failure(error: BaseException, executor: StageExecutor, operation: str) -> BaseException:
    """Return what to raise for an error of a stage's operation: one that names both, unless it says where it comes from.

    A block that calls sys.exit() fails as well, and does not end the program.
    """
    if isinstance(error, PetraGraphError | Interrupted | Failed | StoreGone | KeyboardInterrupt | GeneratorExit):
        return error
    program = executor.program
    nodes = ", ".join(program.nodes)
    message = f"stage {program.index} ({nodes}) failed in the {operation}: {type(error).__name__}: {error}"
    return RunFailed(message, hint="failure.txt in the run directory has the traceback")
