"""Warnings of what a training shows without ending, each said once, by the process that records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import define, field

from petra_graph.kinds.listener import Listener
from petra_graph.program.stage_program import StageProgram
from petra_graph.record.metrics import quantity_and_stage
from petra_graph.training.loop.peers import Peers

_LOST = 0.5
"""The relative error of a reconstruction above which little of the input is left in it."""


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

    def probed(self, values: Mapping[str, float], programs: Sequence[StageProgram]) -> None:
        """Warn where a probe sees reconstructions that have lost their inputs; once, since every later probe sees it too."""
        lost = dict(_lost(values))
        if not lost or any(text.startswith(_PROBED) for text in self.texts):
            return
        worst = max(lost, key=lambda stage: lost[stage])
        others = f", and {len(lost) - 1} more like it" * (len(lost) > 1)
        nodes = ", ".join(programs[worst - 1].nodes)
        self.say(
            f"{_PROBED}: that of stage {worst} ({nodes}) is {lost[worst]:.0%} off{others}. Either an inverse does not undo its "
            "forward (see `petra-graph check` of its block), or parameters change too much within the delay: lower the learning "
            "rate, lengthen the warm-up, or use fewer stages"
        )


_PROBED = "the probe sees gradients at inputs that were reconstructed wrongly"


def _lost(values: Mapping[str, float]) -> Iterator[tuple[int, float]]:
    for name, value in values.items():
        found = quantity_and_stage(name)
        if found is not None and found[0] == "reconstruction_error" and not value < _LOST:
            yield found[1], value
