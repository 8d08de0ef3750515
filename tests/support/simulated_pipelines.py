"""Pipelines for the time model: chains by hand, and random ones with skips and branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, get_args

from attrs import evolve
from hypothesis import strategies as st

from petra_graph.compiler.listed_stages import partition, per_block
from petra_graph.compiler.lower import Lowering
from petra_graph.compiler.simulator.pipeline import MessageBytes, Pipeline, StageSeconds, pipeline
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import ChannelKey, Direction, Edge, capacity
from petra_graph.program.device_types import Link
from petra_graph.program.method import METHODS
from petra_graph.program.schedule import depths, messages, verb_depth
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Flush, NodeSpec, Schedule, ScheduleName, Word
from tests.support.graph_strategies import cuts, networks
from tests.support.pipelines import built_graph, message_types, node

UNITS = StageSeconds(forward=1, backward=3)
"""A reversible stage's 4 units; `SHORT` are those of a kept graph."""
SHORT = StageSeconds(forward=1, backward=2)


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
    channel_bytes: Mapping[Edge, MessageBytes] | None = None,
    link: Link | None = None,
    overlap: bool = False,
    capacity: Mapping[ChannelKey, int] | None = None,
    devices: Sequence[str] = (),
) -> Pipeline:
    """The programs on devices that all have the same link between them."""
    placed = (
        [evolve(program, device=name) for program, name in zip(programs, devices, strict=True)] if devices else programs
    )
    sizes = {edge: MessageBytes() for program in programs for edge in program.sends} | dict(channel_bytes or {})
    pairs = permutations([program.device for program in placed], 2)
    made = pipeline(placed, seconds, channel_bytes=sizes, links=dict.fromkeys(pairs, link or Link()), overlap=overlap)
    return made.with_capacity(capacity or {})


def chain(
    stages: int,
    schedule: Schedule = "1f1b",
    seconds: StageSeconds | Sequence[StageSeconds] = UNITS,
    *,
    accumulation: int = 1,
    flush: Flush = "drain",
    message: MessageBytes | None = None,
    **more: Any,
) -> Pipeline:
    each = [seconds] * stages if isinstance(seconds, StageSeconds) else seconds
    made = programs(stages, schedule, accumulation=accumulation, flush=flush)
    sizes = {chain_edge(j): message or MessageBytes() for j in range(1, stages)}
    return timed(made, each, channel_bytes=sizes, **more)


def graph_programs(
    nodes: Sequence[NodeSpec],
    stages: Sequence[Sequence[str]] | None = None,
    *,
    method: str = "petra",
    schedule: Schedule = "1f1b",
    accumulation: int = 1,
    words: Sequence[Word] | None = None,
) -> tuple[StageProgram, ...]:
    graph = built_graph(nodes)
    messages = message_types(dict.fromkeys(graph.nodes, 2))
    made = partition(graph, stages or per_block(graph), ("cpu",))
    lowering = Lowering(graph=graph, method=METHODS[method], accumulation=accumulation, messages=messages)
    return lowering.programs(made, schedule, words)


@st.composite
def split_orders(
    draw: st.DrawFn, programs: Sequence[StageProgram], widest: int = 2
) -> tuple[tuple[int, ...], tuple[Word, ...]]:
    """Legal depths and words: along a channel to a producer, depth does not grow from the verb that sends to the one that reads."""
    activations = {
        entry.edge for each in programs for one in each.segments for entry in one.inputs if entry.returns_activation
    }
    of_node = {name: program.index for program in programs for name in program.nodes}
    found: dict[int, tuple[int, Word]] = {}
    for program in reversed(programs):
        if not program.sends:
            found[program.index] = (1, draw(st.sampled_from([word for word in get_args(Word) if word[0] == "F"])))
            continue
        word = draw(st.sampled_from(get_args(Word)))
        depth = 1 if word[0] == "F" else 2
        for edge in program.sends:
            needed, of_consumer = found[of_node[edge.consumer]]
            both = messages(word, of_consumer, returns_activation=edge in activations)
            for sent_by, read_by in (verbs for direction, verbs in both.items() if direction != "forward"):
                while verb_depth(read_by, depth, word) < verb_depth(sent_by, needed, of_consumer):
                    depth += 1
        found[program.index] = (depth + draw(st.integers(0, widest)), word)
    chosen = [found[program.index] for program in programs]
    return tuple(depth for depth, _ in chosen), tuple(word for _, word in chosen)


@st.composite
def split_programs(draw: st.DrawFn, most_stages: int = 7) -> tuple[StageProgram, ...]:
    """The programs of stages with skips and branches between them, whose backwards are split or whole, in any legal order."""
    nodes = draw(networks(max_body=most_stages - 2))
    stages, accumulation = draw(cuts(built_graph(nodes))), draw(st.integers(1, 3))
    whole = graph_programs(nodes, stages, accumulation=accumulation)
    depth, words = draw(split_orders(whole))
    return graph_programs(nodes, stages, schedule=depth, accumulation=accumulation, words=words)


def split_chain(
    stages: int, seconds: StageSeconds | Sequence[StageSeconds], words: Sequence[Word] | None = None, **more: Any
) -> Pipeline:
    """A buffered stem, reversible stages and a head, with split backwards, all FRIW unless given, under `1f1b`."""
    nodes = [
        node("stem", "linear-stem", features=6),
        *(node(f"rev{index}", "rev-mlp", hidden=7) for index in range(stages - 2)),
        node("head", "pool-linear", outputs=5),
    ]
    plain: list[Word] = ["FRIW"] * stages
    made = graph_programs(nodes, words=words or plain)
    each = [seconds] * stages if isinstance(seconds, StageSeconds) else seconds
    return timed(made, each, **{"devices": [f"d{program.index}" for program in made], **more})


QUARTERS = st.integers(1, 12).map(lambda quarters: quarters / 4)
"""Sums of them are exact."""
ANY_SECONDS = st.builds(StageSeconds, forward=QUARTERS, backward=QUARTERS, update=st.sampled_from([0.0, 0.0, 0.5, 2.0]))
ANY_LINK = st.builds(
    Link, latency_seconds=st.sampled_from([0.0, 0.25, 1.5]), bytes_per_second=st.sampled_from([8.0, 4.0, 1e300])
)


@st.composite
def part_seconds(draw: st.DrawFn, word: Word = "FRIW") -> StageSeconds:
    """A stage whose backward has the parts of a word."""
    reconstruct, input_gradient, parameter_gradient = (draw(QUARTERS) for _ in range(3))
    return StageSeconds(
        forward=draw(QUARTERS),
        backward=reconstruct + input_gradient + parameter_gradient,
        reconstruct=reconstruct if "R" in word else 0.0,
        input_gradient=input_gradient if "I" in word else 0.0,
        update=draw(st.sampled_from([0.0, 0.0, 0.5, 2.0])),
    )


@st.composite
def split_pipelines(draw: st.DrawFn, *, capacity: bool = True, most_stages: int = 7, shallow: bool = False) -> Pipeline:
    """Stages with skips and branches between them on their own devices, whose backwards are split, in any legal order.

    Args:
        capacity: channels have none, or those of a run.
        most_stages: the largest number of stages.
        shallow: links and updates are so fast that few micro-batches are in flight.
    """
    made = draw(split_programs(most_stages))
    sizes = st.integers(0, 6)
    found = timed(
        made,
        [draw(part_seconds(program.word)) for program in made],
        devices=[f"d{program.index}" for program in made],
        channel_bytes={
            edge: MessageBytes(forward=draw(sizes), backward=draw(sizes), activation=draw(sizes))
            for program in made
            for edge in program.sends
        },
        overlap=draw(st.booleans()),
        link=Link(latency_seconds=draw(st.sampled_from([0.0, 0.25]))) if shallow else draw(ANY_LINK),
    )
    if not (capacity and draw(st.booleans())):
        return found
    return found.with_capacity({channel.key: channel.capacity for program in made for channel in program.channels})


@st.composite
def gaps_to_depths(draw: st.DrawFn, stages: int, widest: int = 3) -> tuple[int, ...]:
    found = [1]
    for _ in range(stages - 1):
        found.insert(0, found[0] + draw(st.integers(0, widest)))
    return tuple(found)


@st.composite
def chains(
    draw: st.DrawFn, max_stages: int = 5, *, capacity: bool = True, flush: bool = True, overlap: bool = True
) -> Pipeline:
    """Chains of unequal stages on their own devices, in any order that goes on."""
    stages = draw(st.integers(1, max_stages))
    accumulation = draw(st.integers(1, 4))
    ahead = draw(gaps_to_depths(stages))
    flushing = flush and draw(st.booleans())
    made = programs(stages, ahead, accumulation=accumulation, flush="window" if flushing else "drain")
    return _model(draw, made, capacity=capacity, overlap=overlap)


@st.composite
def graphs(draw: st.DrawFn, *, capacity: bool = True, shared: bool = False, overlap: bool = True) -> Pipeline:
    """Stages with skips and branches between them, under any schedule; `shared` lets devices host several."""
    nodes = draw(networks(max_body=5))
    names: list[ScheduleName] = ["lockstep", "1f1b", "sequential"]
    schedule = draw(st.sampled_from(names))
    made = graph_programs(
        nodes, draw(cuts(built_graph(nodes))), schedule=schedule, accumulation=draw(st.integers(1, 3))
    )
    devices = [f"d{draw(st.integers(1, 3))}" for _ in made] if shared else None
    return _model(draw, made, capacity=capacity, overlap=overlap, devices=devices)


def _model(
    draw: st.DrawFn,
    made: Sequence[StageProgram],
    *,
    capacity: bool,
    overlap: bool,
    devices: Sequence[str] | None = None,
) -> Pipeline:
    edges = [edge for program in made for edge in program.sends]
    sizes = st.integers(0, 6)
    found = timed(
        made,
        [draw(ANY_SECONDS) for _ in made],
        devices=devices or [f"d{program.index}" for program in made],
        channel_bytes={edge: MessageBytes(forward=draw(sizes), backward=draw(sizes)) for edge in edges},
        overlap=overlap and draw(st.booleans()),
        link=draw(ANY_LINK),
    )
    if not (capacity and draw(st.booleans())):
        return found
    channels = {channel: draw(st.integers(2, 5)) for channel in found.channels if draw(st.booleans())}
    return found.with_capacity(channels)


def capacities(model: Pipeline) -> dict[ChannelKey, int]:
    return {key: channel.capacity for key, channel in model.channels.items() if channel.capacity is not None}


def run_capacity(model: Pipeline) -> dict[ChannelKey, int]:
    """The capacities that the compiler gives a pipeline's channels, as `compiler.lower` does."""
    stages = {stage.index: stage for stage in model.stages}

    def room(key: ChannelKey) -> int:
        back = model.channels[key._replace(direction="backward") if key.direction == "forward" else key]
        producer, consumer = stages[back.receiver], stages[back.sender]
        return capacity(producer.verb_depth(back.read_by), consumer.verb_depth(back.sent_by))

    return {key: room(key) for key in model.channels}


def channel(stage: int, direction: Direction) -> ChannelKey:
    return ChannelKey(chain_edge(stage), direction)
