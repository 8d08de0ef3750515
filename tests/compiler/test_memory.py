"""What stages hold, part by part, as the methods say."""

from functools import cache
from typing import get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.lower import Lowering, partition, per_block
from petra_graph.compiler.memory import EncodedShare, MemoryModel
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.method import METHODS
from petra_graph.program.node_costs import CostTable, NodeCost, Work
from petra_graph.program.schedule import Policy
from tests.support.costs import costs, messages_of
from tests.support.pipelines import GRAPHS, REVNET, SHAPES, built_graph, message_types

# Every stream is 100 bytes; a node has 1000 bytes of parameters and holds 50 while it works. So the largest moment is one with
# all copies of parameters.
STREAM, PARAMETERS, GRADIENTS, WORKING = 100, 1000, 1, 50


def work(*shares: int | None, fresh: int) -> Work:
    working = WORKING + fresh * STREAM
    return Work(working_bytes=working, accumulating_bytes=working, kept_bytes=300, shares=shares)


def cost(kind: str, inputs: int, outputs: int) -> NodeCost:
    operations = {
        "forward": work(*(None,) * outputs, fresh=outputs),
        "record": work(*(None,) * outputs, fresh=outputs),
        "replay": work(*(None,) * inputs, fresh=inputs),
        "recompute": work(*(None,) * inputs, fresh=inputs),
        "reverse": work(*(None,) * 2 * inputs, fresh=2 * inputs),
        "invert": work(*(None,) * inputs, fresh=inputs),
        "forward_backward": work(*(None,) * inputs, fresh=inputs),
        "update": Work(),
        "first_update": Work(working_bytes=PARAMETERS),
    }
    return NodeCost(
        kind=kind,
        parameters=PARAMETERS,
        parameter_bytes=PARAMETERS,
        gradient_bytes=GRADIENTS,
        statistics=0,
        statistics_bytes=0,
        optimizer_bytes=PARAMETERS,
        input_values=(STREAM,) * inputs,
        input_bytes=(STREAM,) * inputs,
        output_bytes=(STREAM,) * outputs,
        work=operations,
    )


GRAPH = built_graph(REVNET)
TABLE = CostTable(
    micro_batch=1,
    sample_bytes=(25,),
    target_bytes=8,
    nodes={
        name: cost(node.kind, 1 if INPUT in node.inputs else 2, 0 if node.kind == "head" else 2)
        for name, node in GRAPH.nodes.items()
    },
)
J = len(GRAPH.nodes)


@cache
def graph_costs(name: str) -> CostTable:
    return costs(GRAPHS[name], SHAPES[name])


def programs(method: str, schedule="lockstep", accumulation: int = 1, devices: tuple[str, ...] = ("cpu",)):
    lowering = Lowering(
        graph=GRAPH,
        method=METHODS[method],
        accumulation=accumulation,
        messages=message_types({name: len(node.output_bytes) for name, node in TABLE.nodes.items()}),
    )
    return lowering.programs(partition(GRAPH, per_block(GRAPH), devices), schedule)


def parts(method: str, part: str, *arguments, **transport) -> list[int]:
    model = MemoryModel(costs=TABLE, transport=EncodedShare(**transport))
    return [getattr(stage, part) for stage in model.apart(programs(method, *arguments))]


def test_input_buffers_are_depth_times_bytes():
    #                                     stem     a0   a1   down b0   head; the stem's in the samples' own type
    assert parts("dsp", "input_buffer") == [11 * 25, 1800, 1400, 1000, 600, 0]
    assert parts("dsp", "input_buffer", "1f1b") == [6 * 25, 1000, 800, 600, 400, 0]
    assert parts("petra", "input_buffer") == [11 * 25, 0, 0, 1000, 0, 0], "where nothing can be reconstructed"


@pytest.mark.parametrize(("k", "copies"), [(1, [10, 8, 6, 4, 2, 0]), (3, [4, 3, 2, 2, 1, 0])])
def test_there_are_as_many_copies_as_distinct_versions(k, copies):
    expected = [PARAMETERS * count for count in copies]
    assert parts("pipedream", "parameter_buffer", "lockstep", k) == expected
    assert parts("delayed-reconstructed", "parameter_buffer", "lockstep", k) == expected
    assert parts("dsp", "parameter_buffer", "lockstep", k) == [0] * J


@pytest.mark.parametrize("operation", ["predict", "estimate"])
def test_one_copy_is_held_for_a_delay_until_the_update(operation):
    correcting = Work(working_bytes=PARAMETERS + 5, kept_bytes=PARAMETERS)
    nodes = {name: attrs.evolve(one, work={**one.work, operation: correcting}) for name, one in TABLE.nodes.items()}
    model = MemoryModel(costs=attrs.evolve(TABLE, nodes=nodes))
    for k in (1, 3):
        found = model.apart(programs("petra", "lockstep", k))
        assert [stage.parameter_buffer for stage in found] == [PARAMETERS] * (J - 1) + [0]
    for method, schedule in (("petra", "sequential"), ("gpipe", "fill-drain")):
        assert [stage.parameter_buffer for stage in model.apart(programs(method, schedule))] == [0] * J


def test_kept_graphs_are_as_many_as_micro_batches_in_flight():
    # Between them, 300 bytes of graph, two streams in and two out; the stem's input are 25 bytes of samples.
    each = [525, 700, 700, 700, 700, 0]
    assert parts("gpipe", "graphs", "fill-drain", 4) == [4 * size for size in each]
    assert parts("backprop", "graphs", "sequential") == each
    in_flight = [4, 4, 4, 3, 2, 0]
    assert parts("1f1b-flush", "graphs", "1f1b", 4) == [
        count * size for count, size in zip(in_flight, each, strict=True)
    ]


def test_gradients_live_on_within_a_window():
    assert parts("petra", "gradients", "1f1b", 1)[:-1] == [0] * (J - 1)
    assert parts("petra", "gradients", "1f1b", 4)[:-1] == [GRADIENTS] * (J - 1)


@pytest.mark.parametrize("policy", get_args(Policy))
@pytest.mark.parametrize("method", METHODS)
def test_on_a_device_each_stages_and_devices_hold_the_same(method, policy):
    stages = programs(method, METHODS[method].schedules[0], 2, tuple(f"cuda:{index}" for index in range(J)))
    model = MemoryModel(costs=TABLE, policy=policy)
    assert list(model.on_devices(stages).values()) == list(model.apart(stages))


@st.composite
def shared_devices(draw):
    """A pipeline whose stages share devices: its programs, its costs and the policy of its processes."""
    name = draw(st.sampled_from(sorted(GRAPHS)))
    method = METHODS[draw(st.sampled_from(sorted(METHODS)))]
    schedule = draw(st.sampled_from([one for one in method.schedules if one != "auto"]))
    graph, table = built_graph(GRAPHS[name]), graph_costs(name)
    count = draw(st.integers(1, len(graph.nodes) - 1))
    devices = draw(st.lists(st.integers(0, count - 1), min_size=len(graph.nodes), max_size=len(graph.nodes)))
    lowering = Lowering(graph=graph, method=method, accumulation=draw(st.integers(1, 3)), messages=messages_of(table))
    made = lowering.programs(partition(graph, per_block(graph), ["cpu"]), schedule)
    placed = [attrs.evolve(program, device=str(device)) for program, device in zip(made, sorted(devices), strict=True)]
    return placed, table, draw(st.sampled_from(get_args(Policy)))


@given(shared_devices())
def test_a_shared_device_holds_no_more_than_its_stages_apart_and_no_less_than_each_of_them(case):
    stages, table, policy = case
    model = MemoryModel(costs=table, policy=policy)
    apart, found, peaks = model.apart(stages), model.on_devices(stages), model.peaks(stages)
    assert {device: held.total for device, held in found.items()} == peaks
    for device, held in found.items():
        own = [memory for stage, memory in zip(stages, apart, strict=True) if stage.device == device]
        parameters = sum(memory.parameters for memory in own)
        assert held.parameters == parameters
        if policy == "arrival":  # as for stages apart
            targets = 2 * max(stage.depth for stage in stages) * table.target_bytes
            assert held.total <= sum(memory.total for memory in own) + targets
            assert held.total >= max(memory.total - memory.parameters for memory in own) + parameters


def test_what_a_stage_sends_on_is_one_tensor_on_a_shared_device():
    # A coupling sends the stream that it stores as one of its two, so that the next stage stores it again.
    swapped = {"forward": work(1, None, fresh=1)}
    nodes = {
        name: attrs.evolve(node, work={**node.work, **swapped}) if node.kind == "reversible" else node
        for name, node in TABLE.nodes.items()
    }
    model = MemoryModel(costs=attrs.evolve(TABLE, nodes=nodes))
    (held,) = model.on_devices(programs("dsp", "sequential")).values()
    # One micro-batch in flight: samples, two streams of the stem, a new one of a0 and of a1, two of down.
    assert held.input_buffer == 25 + 2 * STREAM + STREAM + STREAM + 2 * STREAM
    apart = model.apart(programs("dsp", "sequential"))
    assert sum(stage.input_buffer for stage in apart) == 25 + 4 * 2 * STREAM


def test_targets_wait_for_a_head_on_the_device_of_the_samples():
    stages = programs("petra", "1f1b")
    here, there = (MemoryModel(costs=TABLE, transport=EncodedShare(targets=share)) for share in (1.0, 0.0))
    (host,), (elsewhere,) = (model.on_devices(stages).values() for model in (here, there))
    assert 0 < host.total - elsewhere.total <= (J + 1) * TABLE.target_bytes
    assert (host.total - elsewhere.total) % TABLE.target_bytes == 0
    apart = programs("petra", "1f1b", devices=("cuda:0", "cuda:1"))
    assert here.on_devices(apart) == there.on_devices(apart)


def test_longer_runs_hold_no_more():
    for method in ("petra", "pipedream"):
        stages = programs(method, "lockstep", 2)
        for policy in get_args(Policy):
            short, long = (MemoryModel(costs=TABLE, policy=policy, micro_batches=count) for count in (None, 80))
            assert short.apart(stages) == long.apart(stages)
            assert short.on_devices(stages) == long.on_devices(stages)
