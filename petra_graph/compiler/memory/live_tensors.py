"""The live tensors of one stage: their bytes, the reasons for which they are alive, and the largest moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from petra_graph.program.memory import Part, StageBytes

Role = Literal["parameter_buffer", "input_buffer", "graphs", "channels", "working"]
_RANKED: tuple[Role, ...] = ("parameter_buffer", "input_buffer", "graphs", "channels", "working")
"""A tensor that is held for several reasons counts for the first."""


class LiveTensor:
    """A tensor, as its bytes and the reasons for which it is alive."""

    __slots__ = ("reasons", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.reasons: Counter[Role] = Counter()


Streams = list[LiveTensor]


class LiveTensors:
    """Bytes alive in one stage, tensor by tensor."""

    def __init__(self, parameters: int) -> None:
        self.fixed: Counter[Part] = Counter({"parameters": parameters})
        """Parameters, gradients and optimizer state."""
        self.peak = StageBytes()
        self._most = -1
        self._held: set[LiveTensor] = set()
        self._held_bytes = 0

    def hold(self, streams: Iterable[LiveTensor], role: Role = "working") -> None:
        """Let tensors live for one more reason."""
        for stream in streams:
            if not stream.reasons:
                self._held.add(stream)
                self._held_bytes += stream.size
            stream.reasons[role] += 1

    def drop(self, streams: Iterable[LiveTensor], role: Role = "working") -> None:
        """Take one reason away; a tensor without any is freed."""
        for stream in streams:
            stream.reasons[role] -= 1
            if not stream.reasons[role]:
                del stream.reasons[role]
            if not stream.reasons:
                self._held.remove(stream)
                self._held_bytes -= stream.size

    def allocate(self, sizes: Sequence[int], role: Role = "working") -> Streams:
        """Return new tensors, alive for one reason."""
        streams = [LiveTensor(size) for size in sizes]
        self.hold(streams, role)
        return streams

    def update_peak(self, working: int = 0) -> None:
        """Record a moment at which the running operation holds `working` bytes of its own."""
        total = sum(self.fixed.values()) + self._held_bytes + working
        if total > self._most:
            self._most = total
            self.peak = self.now(working)

    def now(self, working: int = 0) -> StageBytes:
        """Return the bytes that are alive, with `working` bytes of the running operation's own."""
        parts: Counter[str] = Counter({str(part): size for part, size in self.fixed.items()})
        parts["working"] += working
        for stream in self._held:
            parts[next(role for role in _RANKED if role in stream.reasons)] += stream.size
        return StageBytes(**parts)
