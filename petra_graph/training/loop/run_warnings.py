"""Warnings of what a training shows without ending, each said once, by the process that records."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from petra_graph.kinds.listener import Listener
from petra_graph.training.loop.peers import Peers


@define(eq=False)
class RunWarnings:
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
        """Say the warnings of other processes, where this one records."""
        if self.observers:
            for text in self.peers.warnings():
                self.say(text)
