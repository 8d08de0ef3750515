"""Pipelines for the time model: chains by hand, and random ones with skips and branches."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, get_args

from attrs import evolve
from hypothesis import strategies as st

from petra_graph.compiler.lower import Lowering, partition, per_block
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey, Direction, Edge
from petra_graph.program.device_types import Link
from petra_graph.program.method import METHODS
from petra_graph.program.schedule import depths
from petra_graph.program.simulation import ChannelTiming, Pipeline, StageSeconds
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Flush, NodeSpec, Schedule
from tests.support.graph_strategies import cuts, networks
from tests.support.pipelines import built_graph, message_types

UNITS = StageSeconds(forward=1, backward=3)
"""A reversible stage's 4 units; `SHORT` are those of a kept graph."""
SHORT = StageSeconds(forward=1, backward=2)


class BothWays(NamedTuple):
    """Bytes of a micro-batch's messages."""

    forward: int = 0
    backward: int = 0


def chain_edge(stage: int) -> Edge:
    return Edge(f"n{stage}", f"n{stage + 1}")


def programs(
    stages: int, schedule: Schedule = "1f1b", *, accumulation: int = 1, flush: Flush = "drain"
) -> tuple[StageProgram, ...]:
    """A chain's programs, as far as the time model reads them."""
    ahead = depths(schedule, [stages - j for j in range(1, stages + 1)], accumulation)
    return tuple(
        StageProgram(
            index=j,
            segments=(),
            depth=ahead[j - 1],
            accumulation=accumulation,
            flush=flush,
            device=f"d{j}",
            receives=(chain_edge(j - 1) if j > 1 else Edge(INPUT, "n1"),),
            sends=(chain_edge(j),) if j < stages else (),
        )
        for j in range(1, stages + 1)
    )


def timed(
    programs: Sequence[StageProgram],
    seconds: Sequence[StageSeconds],
    *,
    channel_bytes: Mapping[Edge, BothWays] | None = None,
    link: Link | None = None,
    devices: Sequence[str] = (),
) -> Pipeline:
    """The programs on devices that all have the same link between them."""
    placed = (
        [evolve(program, device=name) for program, name in zip(programs, devices, strict=True)] if devices else programs
    )
    sender_of = {edge: program for program in placed for edge in program.sends}
    ends = {edge: (sender_of[edge], one) for one in placed for edge in one.receives if edge.producer != INPUT}
    between, sizes, channels = link or Link(), channel_bytes or {}, {}
    for direction, (edge, pair) in product(get_args(Direction), ends.items()):
        sender, receiver = pair if direction == "forward" else pair[::-1]
        timing = ChannelTiming(sender=sender.index, receiver=receiver.index)
        if sender.device != receiver.device:
            timing = evolve(
                timing,
                link=(sender.device, receiver.device),
                occupies_seconds=getattr(sizes.get(edge, BothWays()), direction) / between.bytes_per_second,
                latency_seconds=between.latency_seconds,
            )
        channels[ChannelKey(edge, direction)] = timing
    return Pipeline(stages=tuple(placed), seconds=tuple(seconds), channels=channels)


def chain(
    stages: int,
    schedule: Schedule = "1f1b",
    seconds: StageSeconds | Sequence[StageSeconds] = UNITS,
    *,
    accumulation: int = 1,
    flush: Flush = "drain",
    message: BothWays | None = None,
    **more: Any,
) -> Pipeline:
    each = [seconds] * stages if isinstance(seconds, StageSeconds) else seconds
    made = programs(stages, schedule, accumulation=accumulation, flush=flush)
    sizes = {chain_edge(j): message or BothWays() for j in range(1, stages)}
    return timed(made, each, channel_bytes=sizes, **more)


def graph_programs(
    nodes: Sequence[NodeSpec],
    stages: Sequence[Sequence[str]] | None = None,
    *,
    method: str = "petra",
    schedule: Schedule = "1f1b",
    accumulation: int = 1,
) -> tuple[StageProgram, ...]:
    graph = built_graph(nodes)
    messages = message_types(dict.fromkeys(graph.nodes, 2))
    made = partition(graph, stages or per_block(graph), ("cpu",))
    lowering = Lowering(graph=graph, method=METHODS[method], accumulation=accumulation, messages=messages)
    return lowering.programs(made, schedule)


@st.composite
def falling_depths(draw: st.DrawFn, programs: Sequence[StageProgram], widest: int = 2) -> tuple[int, ...]:
    """Legal depths: none grows along an edge."""
    reader = {edge: program.index for program in programs for edge in program.receives}
    found: dict[int, int] = {}
    for program in reversed(programs):
        least = max((found[reader[edge]] for edge in program.sends), default=1)
        found[program.index] = least + (draw(st.integers(0, widest)) if program.sends else 0)
    return tuple(found[program.index] for program in programs)


@st.composite
def any_programs(draw: st.DrawFn) -> tuple[StageProgram, ...]:
    """The programs of stages with skips and branches between them, under a schedule by name or any legal depths."""
    nodes = draw(networks(max_body=5))
    stages, accumulation = draw(cuts(built_graph(nodes))), draw(st.integers(1, 3))
    names: list[Schedule] = ["lockstep", "1f1b", "sequential"]
    schedule = draw(st.sampled_from(names) | falling_depths(graph_programs(nodes, stages)))
    return graph_programs(nodes, stages, schedule=schedule, accumulation=accumulation)


QUARTERS = st.integers(1, 12).map(lambda quarters: quarters / 4)
"""Sums of them are exact."""
ANY_SECONDS = st.builds(StageSeconds, forward=QUARTERS, backward=QUARTERS, update=st.sampled_from([0.0, 0.0, 0.5, 2.0]))
ANY_LINK = st.builds(
    Link, latency_seconds=st.sampled_from([0.0, 0.25, 1.5]), bytes_per_second=st.sampled_from([8.0, 4.0, 1e300])
)


@st.composite
def chains(draw: st.DrawFn, max_stages: int = 5, *, flush: bool = True) -> Pipeline:
    """Chains of unequal stages on their own devices, in any order that goes on."""
    stages = draw(st.integers(1, max_stages))
    accumulation = draw(st.integers(1, 4))
    ahead = draw(falling_depths(programs(stages), 3))
    flushing = flush and draw(st.booleans())
    made = programs(stages, ahead, accumulation=accumulation, flush="window" if flushing else "drain")
    return _model(draw, made)


@st.composite
def graphs(draw: st.DrawFn, *, shared: bool = False) -> Pipeline:
    """Pipelines of any graph; `shared` lets devices host several stages."""
    made = draw(any_programs())
    devices = [f"d{draw(st.integers(1, 3))}" for _ in made] if shared else None
    return _model(draw, made, devices=devices)


def _model(draw: st.DrawFn, made: Sequence[StageProgram], devices: Sequence[str] | None = None) -> Pipeline:
    edges = [edge for program in made for edge in program.sends]
    sizes = st.integers(0, 6)
    return timed(
        made,
        [draw(ANY_SECONDS) for _ in made],
        devices=devices or [f"d{program.index}" for program in made],
        channel_bytes={edge: BothWays(forward=draw(sizes), backward=draw(sizes)) for edge in edges},
        link=draw(ANY_LINK),
    )
