"""Devices that exchange messages as NCCL does, at its strictest, compute the bits of one process, whatever moves first."""

from __future__ import annotations

from collections import defaultdict
from itertools import cycle, groupby, islice
from typing import get_args

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import Interrupted
from petra_graph.program.cut import Cut, aligned
from petra_graph.program.schedule import Policy, static_evaluation_order, static_order
from petra_graph.runtime.scheduler import gate
from petra_graph.runtime.transport import device_channel
from petra_graph.training.checkpoints.cut_recorder import restore_at_cut
from tests.support import strict_transport
from tests.support.deadlock import deadlock
from tests.support.device_fabric import Fabric
from tests.support.examples import examples
from tests.support.graph_strategies import FEATURES, cuts, networks
from tests.support.kept_cut import KeptCut
from tests.support.pairwise import thinned
from tests.support.pipelines import batches, built_graph, pipeline
from tests.support.same_bits_cases import (
    COMPUTED,
    EPOCHS,
    EVALUATION_BATCH,
    MICRO_BATCHES,
    TESTS,
    USUAL,
    Case,
    alone,
    held,
    train,
)
from tests.support.simulated_pipelines import falling_depths, graph_programs
from tests.support.stream_orders import stream_orders
from tests.support.strict_transport import AllReduce, Standstill, Wiring

pytestmark = pytest.mark.slow
EVALUATED = range(TESTS // EVALUATION_BATCH + 1)
"""Batches."""


def merged(parts) -> dict[str, str]:
    return {key: value for part in parts.values() for key, value in part.items()}


def whole_run(case: Case, ranks, **more):
    """Train and evaluate as a case says; return what all processes hold, and what each enqueued."""
    built = case.built()
    clipped = case.settings.get("clip") is not None

    def body(scheduler, _):
        return held(scheduler.executors, train(case, scheduler))

    ran = strict_transport.run(built.executors, ranks, body, global_clip=clipped, **more)
    return merged(ran.returned), ran.done


def phases(programs, ranks, at: int | None = None):
    """What processes enqueue in each epoch and each evaluation; `at`: behind a cut in the first of them."""
    first = 0 if at is None else at // MICRO_BATCHES
    for epoch in range(first, EPOCHS):
        micro_batches = range(epoch * MICRO_BATCHES, (epoch + 1) * MICRO_BATCHES)
        cut = Cut(micro_batches=micro_batches, at=micro_batches.start if at is None else at)
        order = [
            (stage, action)
            for stage, action in static_order(programs, micro_batches)
            if not cut.precedes(programs[stage - 1], action)
        ]
        at = None
        yield stream_orders(programs, ranks, order)
        yield stream_orders(programs, ranks, static_evaluation_order(programs, EVALUATED))


def read_and_posted(order):
    """A process's order as the words of `strict_transport`: what it reads, sends and receives."""
    for one in order:
        if one.kind == "compute":
            yield from (f"read {order[place].channel}" for place in one.after if order[place].kind == "receive")
        else:
            yield f"{one.kind} {one.channel}"


def counts_before_receives(done):
    """By channel, for each of its receives, how much was read and sent before; and what was read and sent, together if at once."""
    receives, others = defaultdict(list), []
    for each in done:
        kind, channel = each.split(" ", 1)
        if kind == "receive":
            receives[channel].append(len(others))
        else:
            others.append(each)
    return receives, [sorted(group) for _, group in groupby(others, lambda each: each.split()[0])]


def assert_as_enqueued(orders, done):
    """What a process did is what was examined, but that some receives may have been posted sooner."""
    receives, others = counts_before_receives(done)
    latest, expected = counts_before_receives([word for order in orders for word in read_and_posted(order)])
    assert others == expected
    assert receives.keys() == latest.keys()
    for channel, posted in receives.items():
        assert len(posted) == len(latest[channel])
        assert all(one <= other for one, other in zip(posted, latest[channel], strict=True))


def places(stages: int):
    """Two processes, with consecutive stages or every other one, or a process a stage."""
    halves = tuple(2 * stage // stages for stage in range(stages))
    return halves, tuple(stage % 2 for stage in range(stages)), tuple(range(stages))


PLACED = list(zip(COMPUTED, cycle(range(3)), strict=False))


@pytest.mark.parametrize(("name", "which"), thinned(PLACED, [each for each in PLACED if each[0] in USUAL]))
def test_every_method_and_schedule(name, which, monkeypatch):
    """And no order in which they enqueue can stand still."""
    case = COMPUTED[name]
    programs = case.built().programs
    monkeypatch.setattr(gate, "dist", AllReduce())
    found, done = whole_run(case, places(len(programs))[which], seed=len(name))
    assert found == alone(name)
    for ranks in places(len(programs)):
        assert [deadlock(each) for each in islice(phases(programs, ranks), 2)] == [()] * 2
    orders = list(phases(programs, places(len(programs))[which]))
    if case.settings.get("clip") is None:  # else updates stand together
        for rank, own in done.items():
            assert_as_enqueued([each[rank] for each in orders], own)


def asks_to_stop(executor, forward: int, supervisor) -> None:
    """Let a stage's process be asked to stop in some forward."""
    operation, count = executor.forward, iter(range(EPOCHS * MICRO_BATCHES))

    def asking(*arguments):
        if next(count) == forward:
            supervisor.request_stop()
        return operation(*arguments)

    executor.forward = asking


def interrupted(case: Case, ranks, asked: int, forward: int, **more):
    """Train until a rank is asked to stop; return where all stages halted, and what they held there."""
    built = case.built()
    kept, program = KeptCut(built.programs), built.programs[0]

    def body(scheduler, supervisor):
        scheduler.gate.allowed_cut = lambda at: aligned(at, MICRO_BATCHES, program.accumulation, program.flush)
        if ranks[scheduler.executors[0].program.index - 1] == asked:
            asks_to_stop(scheduler.executors[0], forward, supervisor)
        with pytest.raises(Interrupted):
            train(case, scheduler)
        if scheduler.halted is None:  # in an evaluation
            return None
        for executor in scheduler.executors:
            kept.reached(executor, scheduler.halted)
        scheduler.take_in_flight(scheduler.halted, kept)
        return scheduler.halted.at

    ran = strict_transport.run(built.executors, ranks, body, **more)
    (at,) = set(ran.returned.values())
    return at, kept.copies


def resumed(case: Case, ranks, at: int, copies, **more) -> dict[str, str]:
    built = case.built()

    def body(scheduler, _):
        for executor in scheduler.executors:
            restore_at_cut(copies[executor.program.index], executor, scheduler)
        return held(scheduler.executors, train(case, scheduler, at // MICRO_BATCHES, at))

    return merged(strict_transport.run(built.executors, ranks, body, **more).returned)


def assert_rest_of(whole: dict[str, str], rest: dict[str, str]) -> None:
    assert whole["losses"].endswith(rest["losses"])
    assert {**rest, "losses": whole["losses"]} == whole


SOME = [name for name in COMPUTED if "clip" not in name][::7]


@pytest.mark.parametrize("name", thinned(SOME, SOME[::3]))
def test_an_interrupted_run_continues_on_other_processes(name):
    """Whoever is asked to stop, and however late the others learn of it."""
    case = COMPUTED[name]
    stages = len(case.built().programs)
    one, other, each = places(stages)
    stops = set()
    for seed, (ranks, asked, forward) in enumerate([(each, 0, 7), (other, 1, 5)]):
        at, copies = interrupted(case, ranks, asked, forward, seed=seed)
        stops.add(at)
        if at is not None:
            assert len(copies) == stages, "every stage halted, with its messages"
            orders = phases(case.built().programs, one, at)
            assert [deadlock(order) for order in orders] == [()] * (2 * (EPOCHS - at // MICRO_BATCHES))
            assert_rest_of(alone(name), resumed(case, one, at, copies, seed=seed))
    assert stops != {None}


@pytest.mark.parametrize("name", thinned(SOME, SOME[::3]))
def test_a_checkpoint_at_a_cut_changes_nothing(name):
    case = COMPUTED[name]
    built = case.built()
    first, stages = built.programs[0], len(built.programs)
    at = aligned(MICRO_BATCHES + 2, MICRO_BATCHES, first.accumulation, first.flush)
    kept, ranks = KeptCut(built.programs, at), places(stages)[2]

    def body(scheduler, _):
        scheduler.gate.cuts = kept
        return held(scheduler.executors, train(case, scheduler))

    assert merged(strict_transport.run(built.executors, ranks, body).returned) == alone(name)
    assert_rest_of(alone(name), resumed(case, ranks, at, kept.copies))


def test_a_forward_that_begins_before_its_message_has_come_cannot_be_stopped():
    """Its process waits in the middle of it when it learns that the first stage has halted before."""
    case = next(iter(COMPUTED.values()))
    ranks = places(len(case.built().programs))[2]
    with pytest.raises(Standstill, match="to come"):
        interrupted(case, ranks, 0, 6, wiring=Wiring(forwards_awaited=False))


@pytest.fixture
def fabric(monkeypatch):
    fabric = Fabric()
    monkeypatch.setattr(device_channel, "dist", fabric)
    return fabric


@pytest.mark.parametrize(("name", "policy"), list(zip(COMPUTED, cycle(get_args(Policy)), strict=False))[::20])
def test_a_device_waits_for_nothing_that_a_host_has_yet_to_do(name, policy, fabric, monkeypatch):
    """With the channels of `nccl`, under both policies, whatever the hosts know late: the fabric refuses such waits."""
    case = COMPUTED[name]
    monkeypatch.setattr(gate, "dist", AllReduce())
    for ranks in places(len(case.built().programs))[1:]:
        assert whole_run(case, ranks, seed=len(name), policy=policy, fabric=fabric)[0] == alone(name)


def test_an_interruption_leaves_no_message_without_its_receive(fabric):
    case = COMPUTED[SOME[-1]]
    ranks = places(len(case.built().programs))[2]
    at, copies = interrupted(case, ranks, 1, 5, fabric=fabric)
    assert at is not None
    assert all(len(group.sent) == len(group.received) for group in fabric.groups)
    assert_rest_of(alone(SOME[-1]), resumed(case, ranks, at, copies, fabric=fabric))


@st.composite
def pipelines(draw):
    """Two equal pipelines over any graph, in any stages, with any legal depths, and capacities that are large enough."""
    nodes = draw(networks(max_body=4))
    stages = draw(cuts(built_graph(nodes)))
    more = {"stages": stages, "accumulation": draw(st.integers(1, 3))}
    if draw(st.booleans()):
        more["schedule"] = draw(falling_depths(graph_programs(nodes, stages)))
    else:
        more["schedule"] = draw(st.sampled_from(["lockstep", "1f1b", "sequential"]))
    one, other = (pipeline(nodes, (FEATURES,), batch=2, **more) for _ in range(2))
    for executor in other.executors:
        channels = [evolve(one, capacity=one.capacity + len(str(one)) % 3) for one in executor.program.channels]
        executor.program = evolve(executor.program, channels=tuple(channels))
    hosts = draw(st.lists(st.integers(0, 3), min_size=len(stages), max_size=len(stages)))
    return one, other, tuple(sorted(set(hosts)).index(host) for host in hosts)


@examples(8)
@given(pipelines(), st.integers(1, 9), st.integers(0, 1000))
def test_any_graph_ends_with_the_same_bits(pipelines, count, seed):
    one, other, ranks = pipelines
    data = batches((FEATURES,), count, size=2)
    one.train(data)
    programs = [executor.program for executor in other.executors]
    assert deadlock(stream_orders(programs, ranks, static_order(programs, range(count)))) == ()
    strict_transport.run(
        other.executors, ranks, lambda scheduler, _: scheduler.train(data, range(count), lambda _: None), seed=seed
    )
    found, expected = other.parameters(), one.parameters()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
