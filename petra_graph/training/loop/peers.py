"""The other processes of a run, as its training loop sees them, and what it tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import frozen
from torch import Tensor

from petra_graph.training.loop.meters import Meters


@frozen(kw_only=True)
class Progress:
    epochs: int = 0
    micro_batches: int = 0
    updates: int = 0
    train: Mapping[str, float] | None = None
    test: Mapping[str, float] | None = None
    seconds: float = 0.0
    """Seconds of training, without evaluations."""
    first: tuple[int, float] = (0, 0.0)
    """The first micro-batches of the process with the head, in which libraries start, and their seconds."""

    @property
    def micro_batches_per_second(self) -> float | None:
        """The rate behind the first micro-batches; of all, where those are most of them."""
        count, seconds = self.first
        if 2 * count > self.micro_batches:
            count, seconds = 0, 0.0
        spent = self.seconds - seconds
        return (self.micro_batches - count) / spent if self.micro_batches and spent > 0 else None


class Peers(Protocol):
    """The other processes of a run; a run in one process has none."""

    def exchange_meters(self, epoch: int, meters: Meters) -> None:
        """Merge the meters of other replicas' heads, or send this process's own."""

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of all stages in the process that records, under a name that is used once in a run."""
        ...

    def leaders(self, name: str, own: str) -> str:
        """Return a text of the process that records, under a name that is used once in a run."""
        ...

    def warn(self, texts: Sequence[str]) -> None:
        """Publish all warnings of this process so far, for the process that records."""

    def warnings(self) -> Sequence[str]:
        """Return the warnings that other processes have published, in the order of ranks."""
        ...

    def publish(self, progress: Progress) -> None:
        """Publish how far the training came, in case this process is killed."""
