"""What stages hold, part by part, as the methods say."""

from __future__ import annotations

import attrs
import pytest

from petra_graph.compiler.listed_stages import partition, per_block
from petra_graph.compiler.lower import lower
from petra_graph.compiler.memory.live_tensors import LiveTensors
from petra_graph.compiler.memory.pipeline_memory import device_memory, memory_after_operations, stage_memory
from petra_graph.compiler.memory.segment_memory import EncodedShare
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.costs import CostTable, NodeCost, Work
from petra_graph.program.memory import StageBytes
from petra_graph.program.method import METHODS
from petra_graph.program.schedule import static_order
from tests.support.pipelines import REVNET, built_graph, message_types

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
    sample_bytes=25,
    target_bytes=8,
    nodes={
        name: cost(node.kind, 1 if INPUT in node.inputs else 2, 0 if node.kind == "head" else 2)
        for name, node in GRAPH.nodes.items()
    },
)
J = len(GRAPH.nodes)


def programs(method: str, schedule: str = "lockstep", accumulation: int = 1, devices: tuple[str, ...] = ("cpu",)):
    return lower(
        GRAPH,
        partition(GRAPH, per_block(GRAPH), devices),
        method=METHODS[method],
        schedule=schedule,
        accumulation=accumulation,
        messages=message_types({name: len(node.output_bytes) for name, node in TABLE.nodes.items()}),
    )


def parts(method: str, part: str, *arguments, **transport) -> list[int]:
    found = stage_memory(programs(method, *arguments), TABLE, transport=EncodedShare(**transport))
    return [getattr(stage, part) for stage in found]


def test_input_buffers_are_depth_times_bytes():
    #                                     stem     a0   a1   down b0   head; the stem's in the samples' own type
    assert parts("dsp", "input_buffer") == [11 * 25, 1800, 1400, 1000, 600, 0]
    assert parts("dsp", "input_buffer", "1f1b") == [6 * 25, 1000, 800, 600, 400, 0]


def test_petra_buffers_where_nothing_can_be_reconstructed():
    assert parts("petra", "input_buffer") == [11 * 25, 0, 0, 1000, 0, 0]


@pytest.mark.parametrize(("k", "copies"), [(1, [10, 8, 6, 4, 2, 0]), (3, [4, 3, 2, 2, 1, 0])])
def test_there_are_as_many_copies_as_distinct_versions(k, copies):
    expected = [PARAMETERS * count for count in copies]
    assert parts("pipedream", "parameter_buffer", "lockstep", k) == expected
    assert parts("delayed-reconstructed", "parameter_buffer", "lockstep", k) == expected
    assert parts("dsp", "parameter_buffer", "lockstep", k) == [0] * J


def test_kept_graphs_are_as_many_as_micro_batches_in_flight():
    # Between them, 300 bytes of graph, two streams in and two out; the stem's input are 25 bytes of samples.
    each = [525, 700, 700, 700, 700, 0]
    assert parts("gpipe", "graphs", "fill-drain", 4) == [4 * size for size in each]
    assert parts("backprop", "graphs", "sequential") == each
    in_flight = [4, 4, 4, 3, 2, 0]
    assert parts("1f1b-flush", "graphs", "1f1b", 4) == [
        count * size for count, size in zip(in_flight, each, strict=True)
    ]


def test_memory_follows_a_given_order():
    made = programs("dsp", "1f1b")
    operations = list(static_order(made, range(8)))
    memory = list(memory_after_operations(made, TABLE, operations))
    held = [now.input_buffer for (stage, _), now in zip(operations, memory, strict=True) if stage == 2]
    actions = [str(action) for stage, action in operations if stage == 2]
    # Two streams of 100 bytes each: a forward adds them, a backward takes them.
    expected, most = [], 0
    for action in actions:
        most += {"F": 200, "B": -200, "U": 0}[action[0]]
        expected.append(most)
    assert held == expected
    assert max(held) == parts("dsp", "input_buffer", "1f1b")[1]
    assert held[-1] == 0


def test_gradients_live_on_within_a_window():
    assert parts("petra", "gradients", "1f1b", 1)[:-1] == [0] * (J - 1)
    assert parts("petra", "gradients", "1f1b", 4)[:-1] == [GRADIENTS] * (J - 1)


def test_smaller_types_shrink_what_waits_and_what_travels():
    # One of them is restored, and works.
    assert parts("dsp", "input_buffer", buffer=0.5) == [11 * 25, 800, 600, 400, 200, 0]
    assert parts("dsp", "input_buffer", buffer=0.0, sample_buffer=0.0) == [0] * J
    whole, half = (
        stage_memory(programs("petra"), TABLE, transport=EncodedShare(channel=share)) for share in (1.0, 0.5)
    )
    assert sum(stage.channels for stage in half) < sum(stage.channels for stage in whole)


def test_parts_add_up_and_devices_sum_their_stages():
    stages = programs("petra", devices=("cuda:0", "cuda:1"))
    found = stage_memory(stages, TABLE)
    assert all(stage.total == sum(attrs.astuple(stage)) for stage in found)
    devices = device_memory(stages, found)
    assert {device: one.total for device, one in devices.items()} == {
        "cuda:0": sum(stage.total for stage in found[:3]),
        "cuda:1": sum(stage.total for stage in found[3:]),
    }


def test_longer_runs_hold_no_more():
    for method in ("petra", "pipedream"):
        stages = programs(method, "lockstep", 2)
        assert stage_memory(stages, TABLE) == stage_memory(stages, TABLE, micro_batches=80)


def test_a_tensor_counts_once_and_for_its_first_reason():
    live = LiveTensors(parameters=7)
    stream = live.allocate([100])
    live.hold(stream, "channels")
    live.hold(stream, "input_buffer")
    live.update_peak(5)
    assert live.peak == StageBytes(parameters=7, input_buffer=100, working=5)
    live.drop(stream, "input_buffer")
    live.drop(stream)
    live.update_peak(20)
    assert live.peak == StageBytes(parameters=7, channels=100, working=20)
    live.drop(stream, "channels")
    live.update_peak(100)
    assert live.peak.total == 127
