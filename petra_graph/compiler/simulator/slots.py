"""The fewest slots for each wire that cost neither deadlock nor throughput.

More slots never make a pipeline slower, and as many as the micro-batches that its edge's producer has in flight never
make it wait. From there all channels are lowered together as far as it goes, then halves of them, and so on down to single
ones: where all wires are alike, a few trials tell.

    two stages of depths d and e, joined by one edge, need d - e slots at least in both directions together: so many
    messages are under way between them before either can go on. A skip edge's ends are further apart in depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import evolve

from petra_graph.compiler.simulator.cycle import CycleFinder
from petra_graph.compiler.simulator.deadlock import Deadlock
from petra_graph.compiler.simulator.model import ChannelKey, Pipeline
from petra_graph.compiler.simulator.steady import tick
from petra_graph.compiler.simulator.waits import CapacityEdges, needs_windows, precedence_graph

TOLERANCE = 1e-6
"""Of throughput."""


def fewest_slots(pipeline: Pipeline, tolerance: float = TOLERANCE, at_least: int = 1) -> Mapping[ChannelKey, int]:
    """Return slots for every channel between two devices, of which none can have one less.

    Args:
        pipeline: its own slots are not looked at.
        tolerance: of the throughput without bound, which may be lost.
        at_least: slots of every channel; more hide what the model does not know.

    Raises:
        Deadlock: no number of slots makes this order go on.
    """
    unbounded = evolve(pipeline, slots={})
    limit = tick(unbounded).seconds * (1 + tolerance)
    depth = {stage.index: stage.depth for stage in pipeline.stages}
    producer = {wire.edge: wire.producer for wire in pipeline.wires}
    # Backward messages may carry an activation beside the gradient: they come first, and are lowered first.
    channels = [channel for channel, hop in reversed(list(pipeline.channels.items())) if hop.link is not None]
    slots = {channel: max(at_least, depth[producer[channel.edge]]) for channel in channels}
    if not pipeline.one_stage_a_device:
        _lower(slots, channels, at_least, lambda tried: _goes_on(evolve(pipeline, slots=tried), limit))
        return slots
    if not needs_windows(pipeline) or pipeline.flushes:
        _lower(slots, channels, at_least, _Kept(unbounded, limit, windows=needs_windows(pipeline)))
        return slots
    # Spreading updates evenly only loosens waits, and the graph is k times smaller: often this says it all.
    most = dict(slots)
    _lower(slots, channels, at_least, _Kept(unbounded, limit, windows=False))
    exact = _Kept(unbounded, limit, windows=True)
    if not exact(slots):
        more = {channel: min(count + 1, most[channel]) for channel, count in slots.items()}
        slots = more if exact(more) else most
        _lower(slots, channels, at_least, exact)
    return slots


class _Kept:
    """Says whether slots keep a tick, by searching one graph for slower cycles."""

    def __init__(self, unbounded: Pipeline, seconds: float, *, windows: bool) -> None:
        self._slots = CapacityEdges(unbounded, windows=windows)
        graph = precedence_graph(unbounded, windows=windows)
        self._finder = CycleFinder(graph)
        self._seconds = seconds * graph.period_micro_batches

    def __call__(self, slots: Mapping[ChannelKey, int]) -> bool:
        return self._finder.slower_than(self._seconds, self._slots.of(slots)) is None


def _goes_on(pipeline: Pipeline, seconds: float) -> bool:
    try:
        return tick(pipeline).seconds <= seconds
    except Deadlock:
        return False


def _lower(
    slots: dict[ChannelKey, int],
    channels: Sequence[ChannelKey],
    at_least: int,
    enough: Callable[[Mapping[ChannelKey, int]], bool],
) -> None:
    """Lower some channels to the least common bound, then parts of them further."""
    low, high = at_least, max((slots[channel] for channel in channels), default=at_least)
    while low < high:
        middle = (low + high) // 2
        if enough(slots | _capped(slots, channels, middle)):
            high = middle
        else:
            low = middle + 1
    slots.update(_capped(slots, channels, high))
    channels = [channel for channel in channels if slots[channel] > at_least]
    if len(channels) > 1:
        half = len(channels) // 2
        _lower(slots, channels[:half], at_least, enough)
        _lower(slots, channels[half:], at_least, enough)


def _capped(slots: Mapping[ChannelKey, int], channels: Sequence[ChannelKey], most: int) -> dict[ChannelKey, int]:
    return {channel: min(slots[channel], most) for channel in channels}
