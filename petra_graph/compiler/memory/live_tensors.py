"""The live tensors of one device: their bytes, the reasons for which they are alive, and the largest moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Literal, get_args

from petra_graph.program.stage_bytes import Part, StageBytes

Role = Literal["parameter_buffer", "input_buffer", "graphs", "channels", "working"]
_RANK: dict[Role, int] = {role: rank for rank, role in enumerate(get_args(Role))}
"""A tensor that is held for several reasons counts for the first."""
_FREE = len(_RANK)
"""The rank of a tensor that nothing holds."""


class LiveTensor:
    """A tensor, as its bytes and the reasons for which it is alive."""

    __slots__ = ("rank", "reasons", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.reasons = [0] * _FREE
        """How often it is held in each role, by rank."""
        self.rank = _FREE
        """Of the first role for which it is held."""


Streams = list[LiveTensor]


class TooFull(Exception):
    """A device holds more than it may, so how much more need not be counted."""


class LiveTensors:
    """Bytes alive on one device, tensor by tensor; several stages may hold the same tensors there."""

    def __init__(self, parameters: int = 0, most: float = inf, libraries: int = 0) -> None:
        """Begin with parameters alone.

        Args:
            parameters: their bytes.
            most: bytes beyond which `TooFull` is raised.
            libraries: bytes that the device's libraries keep; they count as working.
        """
        self._libraries = libraries
        self._fixed: dict[Part, int] = {"parameters": parameters, "gradients": 0, "optimizer": 0}
        self._held = [0] * (_FREE + 1)
        """Bytes of tensors by rank; the last entry, of tensors that nothing holds, means nothing."""
        self._total = parameters + libraries
        self._limit = most
        self._most = -1
        self._at_most: tuple[dict[Part, int], list[int], int] = ({}, [0] * _FREE, 0)

    @property
    def peak(self) -> StageBytes:
        """The bytes at the largest moment so far."""
        return _by_part(*self._at_most)

    def add(self, part: Part, size: int) -> None:
        """Add bytes of parameters, gradients or optimizer state; negative ones are freed."""
        self._fixed[part] += size
        self._total += size

    def hold(self, streams: Iterable[LiveTensor], role: Role = "working") -> None:
        """Count one more reason to keep tensors."""
        rank, held = _RANK[role], self._held
        for stream in streams:
            stream.reasons[rank] += 1
            before = stream.rank
            if rank < before:
                stream.rank = rank
                held[before] -= stream.size
                held[rank] += stream.size
                if before == _FREE:
                    self._total += stream.size

    def drop(self, streams: Iterable[LiveTensor], role: Role = "working") -> None:
        """Count one reason less; a tensor without any is freed."""
        rank, held = _RANK[role], self._held
        for stream in streams:
            reasons = stream.reasons
            reasons[rank] -= 1
            if reasons[rank] or stream.rank != rank:
                continue
            after = rank + 1
            while after < _FREE and not reasons[after]:
                after += 1
            stream.rank = after
            held[rank] -= stream.size
            held[after] += stream.size
            if after == _FREE:
                self._total -= stream.size

    def allocate(self, sizes: Sequence[int], role: Role = "working") -> Streams:
        """Return new tensors, alive for one reason."""
        streams = [LiveTensor(size) for size in sizes]
        self.hold(streams, role)
        return streams

    def update_peak(self, working: int = 0) -> None:
        """Record a moment at which the running operation holds `working` bytes of its own."""
        if self._total + working > self._most:
            self._most = self._total + working
            self._at_most = self._fixed.copy(), self._held.copy(), working + self._libraries
            if self._most > self._limit:
                raise TooFull

    def now(self, working: int = 0) -> StageBytes:
        """Return the bytes that are alive, with `working` bytes of the running operation's own."""
        return _by_part(self._fixed, self._held, working + self._libraries)


def _by_part(fixed: dict[Part, int], held: Sequence[int], working: int) -> StageBytes:
    parts: dict[str, int] = {role: held[rank] for role, rank in _RANK.items()}
    parts.update((str(part), size) for part, size in fixed.items())
    parts["working"] += working
    return StageBytes(**parts)
