"""The order of operations in one stage, which follows from its depth; that of several stages is `program.simulation`'s.

Three stages, five micro-batches, `1f1b` (depths 3, 2, 1), accumulation 2:

    stage 1   F0 F1 F2 B0 F3 B1 U F4 B2 B3 U B4 U
    stage 2   F0 F1 B0 F2 B1 U F3 B2 F4 B3 U B4 U
    stage 3   F0 B0 F1 B1 U F2 B2 F3 B3 U F4 B4 U

A stage does `depth` forwards, then alternates backward and forward in micro-batch order, and finishes its backwards at a drain. An
update follows the backward that completes a window of k micro-batches, or the drain's last one. No operation is ever reordered, so timing
has no effect. Windows are counted from the drain before, also where a run is resumed under other stages, and the pipeline fills again.

A pipeline cannot come to a deadlock if no stage is deeper than one that it reads from. Proof: let a producer of depth d come to B(m),
with the forwards up to m + d - 1 done. Its consumer, of depth d' <= d, needs only those up to m + d' - 1 for its own B(m) and for all
that comes before it in its order. The same holds for the consumer's consumers, and at last for the head, which needs nobody.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Flush, RequestedSchedule, Schedule

Verb = Literal["forward", "backward", "update"]
Policy = Literal["arrival", "static"]
"""When a process begins an operation: when its messages have arrived, or in one order of all stages."""


class Action(NamedTuple):
    """One operation of a stage; `micro_batch` counts from the run's start."""

    verb: Verb
    micro_batch: int

    def __str__(self) -> str:
        return "U" if self.verb == "update" else f"{self.verb[0].upper()}{self.micro_batch}"


def depths(schedule: Schedule, distances: Sequence[int], accumulation: int) -> tuple[int, ...]:
    """Return the depth of each stage under a schedule; `distances` are each one's longest path to the head's stage, counted in stages: J-j."""
    match schedule:
        case "lockstep":  # PETRA equation (5)
            return tuple(2 * distance + 1 for distance in distances)
        case "1f1b":  # PipeDream, https://arxiv.org/abs/1806.03377
            return tuple(distance + 1 for distance in distances)
        case "sequential":  # the paper's basic model parallelism
            return (1,) * len(distances)
        case "fill-drain":  # GPipe, https://arxiv.org/abs/1811.06965; flushed after each window
            return (accumulation,) * len(distances)
        case _:
            return schedule


def schedule_text(schedule: RequestedSchedule) -> str:
    """Return a schedule as users read it."""
    return schedule if isinstance(schedule, str) else f"depths {', '.join(map(str, schedule))}"


def order(
    depth: int, micro_batches: range, accumulation: int, flush: Flush = "drain", filled: int = 0
) -> Iterator[Action]:
    """Yield a stage's operations between two drains; those on micro-batches before `filled`, where the pipeline filled again, are left out."""
    if flush == "window":
        for start in range(0, len(micro_batches), accumulation):
            window = micro_batches[start : start + accumulation]
            yield from order(depth, window, accumulation, filled=filled)
        return
    left = micro_batches[max(0, filled - micro_batches.start) :]
    for m in left[:depth]:
        yield Action("forward", m)
    for m in left:
        yield Action("backward", m)
        if (m - micro_batches.start + 1) % accumulation == 0 or m == micro_batches[-1]:
            yield Action("update", m)
        if m + depth in micro_batches:
            yield Action("forward", m + depth)


def program_order(program: StageProgram, micro_batches: range, filled: int = 0) -> Iterator[Action]:
    """Yield the operations of a stage's program; the arguments are those of `order`."""
    return order(program.depth, micro_batches, program.accumulation, program.flush, filled)


Copy = TypeVar("Copy")


class WeightVersions(Generic[Copy]):
    """Versions of a stage's parameters that micro-batches in flight use, counted by its updates: PipeDream's weight stashing (Harlap et al. 2018, section 3.3).

    A copy is made for each distinct version and only when an update is about to overwrite one that is in use, so a stage
    holds at most ceil(staleness / k) copies. The executor copies tensors, the memory model counts bytes.
    """

    def __init__(self, copy: Callable[[], Copy]) -> None:
        self.current = 0
        self.copies: dict[int, Copy] = {}
        self.version_of: dict[int, int] = {}
        self._copy = copy

    def begin(self, micro_batch: int) -> None:
        self.version_of[micro_batch] = self.current

    def end(self, micro_batch: int) -> Copy | None:
        """Forget a micro-batch after its backward; return the copy that was dropped with its last user, if any."""
        version = self.version_of.pop(micro_batch)
        return None if version in self.version_of.values() else self.copies.pop(version, None)

    def before_step(self) -> None:
        """Copy the current version if a micro-batch in flight uses it: the parameters change next."""
        if self.current in self.version_of.values() and self.current not in self.copies:
            self.copies[self.current] = self._copy()
        self.current += 1

    def older(self, micro_batch: int) -> Copy | None:
        """Return the copy that a micro-batch's forward used; None where that version is the current one."""
        version = self.version_of[micro_batch]
        return None if version == self.current else self.copies[version]

    def copy_for(self, micro_batch: int) -> Copy:
        """Return a copy of the version that a micro-batch's forward uses, which no update changes."""
        version = self.version_of[micro_batch]
        if version == self.current and version not in self.copies:
            self.copies[version] = self._copy()
        return self.copies[version]
