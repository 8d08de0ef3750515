"""What stages take and hold on their devices: both models on whole networks, updates, and a GPU beside its host."""

import pytest
from attrs import evolve

from petra_graph.compiler.lower import partition, per_block
from petra_graph.compiler.placement_search import place
from petra_graph.compiler.planner_inputs import Clock, estimated, stage_seconds
from petra_graph.compiler.timing import tick, timing
from petra_graph.program.device_types import DEVICE_TYPES, GPU_LAUNCH_SECONDS, OPERATION_SECONDS, Link
from petra_graph.program.node_costs import Work
from tests.support.pipelines import REVNET, SHAPES, pipeline
from tests.support.settings import CHAIN, UNITS, chain_costs, setting


def programs_of(used):
    return used.placed(place(used, partition(used.graph, per_block(used.graph), [""])))


def timing_per_block(count=5, schedule="lockstep", **changes):
    used = setting(count, schedule=schedule, **changes)
    return timing(used.pipeline(programs_of(used)))


def test_links_slow_down_what_waits_for_each_message():
    link = Link(latency_seconds=0.5, bytes_per_second=1e9)
    apart = timing_per_block(5, schedule="sequential", link=link)
    assert apart.tick_seconds == pytest.approx(23, rel=1e-3)
    assert apart.exposed_communication.links == pytest.approx(4 / 23, rel=1e-3)
    hidden = timing_per_block(5, link=link)  # Lockstep runs ahead far enough to hide it.
    assert (hidden.tick_seconds, hidden.exposed_communication.links) == pytest.approx((4, 0), rel=1e-3)


def test_waiting_for_an_all_reduce_is_no_work():
    """A plan said "bubble 0 %, busy 100 %" where 15.8 of 25.1 ms were waiting for replicas."""
    alone = timing_per_block(1, schedule="1f1b")
    made = timing_per_block(1, schedule="1f1b", replicas=2, link=Link(latency_seconds=10.0))
    exchange = 5 * 2 * 10.0  # of each stage
    assert made.tick_seconds == pytest.approx(alone.tick_seconds + exchange)
    assert 1 - made.bubble_fraction == pytest.approx(19 / (19 + exchange))
    assert made.exposed_communication.all_reduce == made.bubble_fraction == pytest.approx(exchange / (19 + exchange))


def test_reconstruction_at_stored_parameters_costs_a_forward_more():
    delayed = timing_per_block(1, method="delayed-reconstructed").tick_seconds
    assert (
        delayed - timing_per_block(1).tick_seconds == 3
    )  # one unit for each of the reversible nodes, all of which have a depth above 1


SECONDS = {"update": 1.0, "copy": 10.0, "predict": 100.0, "estimate": 1000.0}


def update_seconds(**how):
    built = pipeline(REVNET, SHAPES["revnet"], **how)
    return [stage_seconds(program, dict.fromkeys(program.nodes, SECONDS)).update for program in built.programs]


@pytest.mark.parametrize(
    ("how", "delayed"),
    [
        ({"schedule": "1f1b"}, 1101.0),
        ({"method": "pipedream", "schedule": "1f1b"}, 11.0),
        ({"method": "backprop"}, 1.0),
        ({"method": "gpipe", "accumulation": 2}, 1.0),
    ],
    ids=str,
)
def test_weights_for_a_delay_are_made_once_an_update_where_there_is_one(how, delayed):
    """Where backwards use stored parameters, these are copied, and an optimizer that makes others is refused."""
    *others, head = update_seconds(**how)
    assert others == [delayed] * len(others)
    assert head == 1.0


HOST = 10.0
"""Seconds of the host for each operation of `beside_its_host`, and for a stage's update."""


def beside_its_host(count, *, slow=()):
    """A chain on `count` GPUs, whose operations take one second, or 30 in the nodes of `slow`, and their hosts ten."""
    made = setting(count, schedule="1f1b")

    device = {name: dict.fromkeys((*UNITS, "update"), 30.0 if name in slow else 1.0) for name in NAMES}
    clock = Clock(device=device, host=dict.fromkeys(NAMES, dict.fromkeys(UNITS, HOST)), host_update=HOST)
    return evolve(made, clocks=dict.fromkeys(made.clocks, clock), accumulation=2)


def cut(inputs, *stages):
    """The pipeline of these stages, or of a stage a node, the last device with all that are left."""
    stages = stages or [(name,) for name in NAMES]
    hosts = [inputs.devices[min(at, len(inputs.devices) - 1)].name for at in range(len(stages))]
    return inputs.pipeline(inputs.programs(partition(inputs.graph, stages, hosts), "1f1b"))


NAMES = [node.name for node in CHAIN]
OPERATIONS = 2 * (len(CHAIN) - 1) + 1
"""Of a micro-batch: a forward and a backward of each node, and one of the head."""


@pytest.mark.parametrize(
    ("slow", "seconds"),
    [
        ((), OPERATIONS * HOST + len(CHAIN) * HOST / 2),
        (NAMES, OPERATIONS * 30.0 + len(CHAIN) * 30.0 / 2),
        # One node has 60 of the GPU's seconds, and the host is ahead of them: all others' are its own.
        (["rev0"], OPERATIONS * HOST + len(CHAIN) * HOST / 2),
    ],
    ids=["the host", "the device", "the host, which is ahead of one node"],
)
def test_a_device_that_does_everything_takes_the_longer_of_the_sums(slow, seconds):
    """The host's seconds of one process add up, whichever of its stages they are for; an update's are those of its stage."""
    made = cut(beside_its_host(1, slow=slow))
    assert tick(made).seconds == pytest.approx(seconds)
    assert sum(one.per_micro_batch(2) for one in made.seconds) == pytest.approx(seconds)


def test_a_stage_of_many_nodes_updates_them_at_once():
    first, second = cut(beside_its_host(2), NAMES[:3], NAMES[3:]).seconds
    assert (first.update, second.update) == (HOST + 3.0, HOST + len(NAMES) - 3)


@pytest.mark.parametrize("kind", ["cpu", "h100"])
def test_a_data_sheet_s_host_takes_the_same_for_every_operation(kind):
    """A CPU computes after it has dispatched; a GPU meanwhile."""
    costs = chain_costs()
    name = next(iter(costs.nodes))
    node = costs.nodes[name]
    work = {**node.work, "forward": Work(flops=10**9, kernels=7), "update": Work(kernels=8)}
    costs = evolve(costs, nodes={name: evolve(node, work=work, parameter_tensors=2)})
    device = DEVICE_TYPES[kind]
    clock = estimated(costs, device, "ieee")
    computing = 10**9 / (0.5 * device.float32_flops)
    if kind == "cpu":
        assert clock.longer[name]["forward"] == pytest.approx(computing + 7 * OPERATION_SECONDS["cpu"])
        return
    each = OPERATION_SECONDS["cuda"] + GPU_LAUNCH_SECONDS
    assert (clock.host[name]["forward"], clock.device[name]["forward"]) == (
        pytest.approx(7 * each), pytest.approx(computing),
    )  # fmt: skip
    assert clock.longer[name]["forward"] == max(7 * each, computing)
    assert clock.host[name]["update"] == 0.0
    assert clock.host_update == pytest.approx(4 * each)
    faster = estimated(costs, evolve(device, operation_seconds=0.0), "ieee")
    assert faster.host[name]["forward"] == pytest.approx(7 * GPU_LAUNCH_SECONDS)


def test_kernels_that_move_bytes_take_as_long_as_memory_does():
    costs, device = chain_costs(), DEVICE_TYPES["h100"]
    name, node = next(iter(costs.nodes.items()))
    moving = evolve(node, work={"forward": Work(flops=10**9, traffic_bytes=10**9)})
    clock = estimated(evolve(costs, nodes={name: moving}), device, "ieee")
    assert clock.device[name]["forward"] == pytest.approx(10**9 / (0.5 * device.memory_bandwidth))
