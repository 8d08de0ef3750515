"""The other processes of a run, as its training loop sees them, and the warnings of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field
from torch import Tensor

from petra_graph.plugins.callback import Listener
from petra_graph.training.loop.meters import Meters


class Peers:
    """The other processes of a run. A run in one process has none, so here nothing is exchanged with any."""

    def exchange_meters(self, epoch: int, meters: Meters) -> None:
        """Merge the meters of other replicas' heads, or send this process's own."""

    def gather(self, name: str, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of all stages in the process that records, under a name that is used once in a run."""
        return own

    def text_of_recorder(self, name: str, own: str) -> str:
        """Return a text of the process that records, under a name that is used once in a run."""
        return own

    def warn(self, texts: Sequence[str]) -> None:
        """Publish all warnings of this process so far, for the process that records."""

    def warnings(self) -> Sequence[str]:
        """Return the warnings that other processes have published, in the order of ranks."""
        return ()

    def publish(self, trained: Mapping[str, Any]) -> None:
        """Publish how far the training came, in case this process is killed."""


@define(eq=False)
class RunWarnings:
    """Warnings of what a training shows without ending, each said once, by the process that records."""

    peers: Peers
    observers: Sequence[Listener]
    """The observers of the run, in the process that records; () in another one."""
    texts: list[str] = field(factory=list, init=False)
    """The warnings of all processes in the process that records; elsewhere those of this process."""

    def say(self, text: str) -> None:
        """Say a warning, unless it has been said."""
        if text in self.texts:
            return
        self.texts.append(text)
        for observer in self.observers:
            observer.warned(text)
        if not self.observers:
            self.peers.warn(self.texts)

    def collect(self) -> None:
        """Say the warnings of other processes, if this one records."""
        if self.observers:
            for text in self.peers.warnings():
                self.say(text)
