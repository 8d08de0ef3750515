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
