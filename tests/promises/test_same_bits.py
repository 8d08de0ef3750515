"""Processes and devices change no bit, whatever moves first: a table of trainings, against one process.

The trainings are those of `tests.support.same_bits_cases`: every method, schedule, transport, policy and precision.
"""

import json
from itertools import count, cycle
from typing import get_args
from unittest import mock

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from petra_graph.errors import Interrupted
from petra_graph.program.cut import aligned
from petra_graph.program.schedule import Policy
from petra_graph.runtime import loop, nccl
from petra_graph.training.resume import restore_at_cut
from tests.support import strict_transport
from tests.support.forks import ended, ranks
from tests.support.graph_strategies import FEATURES, cuts, networks
from tests.support.kept_cut import KeptCut
from tests.support.pipelines import batches, built_graph, pipeline, same_bits
from tests.support.same_bits_cases import CASES, COMPUTED, MICRO_BATCHES, USUAL, Case, alone, held, train
from tests.support.simulated_pipelines import falling_depths, graph_programs
from tests.support.strict_transport import AllReduce, Fabric

PATIENCE_SECONDS = 150

# --- real processes --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held_by_processes(request, tmp_path_factory):
    """By number of processes, what each of them holds at the end of each case that is asked for: one launch for all of them."""
    found = {}
    items = [item for item in request.session.items if getattr(item, "originalname", "") == "test_processes"]
    asked = [item.callspec.params["name"] for item in items]

    def of(size: int) -> dict[str, list[dict[str, str]]]:
        if size not in found:
            names = [name for name in asked if CASES[name].processes == size]
            output = tmp_path_factory.mktemp("bits")
            with ranks(*[[str(output), *names]] * size, program="tests.support.same_bits_cases:main") as running:
                for name in names:  # while the others are busy
                    alone(CASES[name].computation)
                assert ended(running, PATIENCE_SECONDS) == [0] * size, "".join(rank.said for rank in running)
            parts = [json.loads((output / f"rank{rank}.json").read_text()) for rank in range(size)]
            found[size] = {name: [part[name] for part in parts] for name in names}
        return found[size]

    return of


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES, ids=str)
def test_processes(shared_folder, held_by_processes, name):
    parts = held_by_processes(CASES[name].processes)[name]
    together = {key: value for part in parts for key, value in part.items()}
    assert sum(map(len, parts)) == len(together), "every stage is hosted once"
    assert all(parts), "every process hosts one"
    assert together == alone(CASES[name].computation)


# --- devices that exchange messages as NCCL does, at its strictest ---------------------------------------------------


def merged(parts) -> dict[str, str]:
    return {key: value for part in parts.values() for key, value in part.items()}


def whole_run(case: Case, hosts, fabric, **more):
    """Train and evaluate as a case says; return what all processes hold."""
    built = case.built()

    def body(scheduler, _):
        return held(scheduler.executors, train(case, scheduler))

    return merged(strict_transport.run(built.executors, hosts, fabric, body, **more))


def places(stages: int):
    """Two processes, with consecutive stages or every other one, or a process a stage."""
    halves = tuple(2 * stage // stages for stage in range(stages))
    return halves, tuple(stage % 2 for stage in range(stages)), tuple(range(stages))


@pytest.fixture
def fabric(monkeypatch):
    fabric = Fabric()
    monkeypatch.setattr(nccl, "dist", fabric)
    return fabric


PLACED = list(zip(USUAL[::2], cycle(range(3)), cycle(get_args(Policy)), strict=False))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "which", "policy"), PLACED)
def test_devices_that_exchange_messages(name, which, policy, fabric, monkeypatch):
    """Under both policies, whatever the hosts know late; the fabric refuses a device that waits for what a host has yet to do."""
    case = COMPUTED[name]
    monkeypatch.setattr(loop, "dist", AllReduce())
    hosts = places(len(case.built().programs))[which]
    assert whole_run(case, hosts, fabric, seed=len(name), policy=policy) == alone(name)


def interrupted(case: Case, hosts, fabric, asked: int, forward: int, **more):
    """Train until a rank is asked to stop in some forward; return where all stages halted, and what they held there."""
    built = case.built()
    kept, program = KeptCut(built.programs), built.programs[0]

    def body(scheduler, supervisor):
        scheduler.allowed_cut = lambda at: aligned(at, MICRO_BATCHES, program.accumulation, program.flush)
        first, forwards = scheduler.executors[0], count()
        if hosts[first.program.index - 1] == asked:
            operation = first.forward
            first.forward = lambda *given: (next(forwards) == forward and supervisor.request_stop(), operation(*given))[
                1
            ]
        with pytest.raises(Interrupted):
            train(case, scheduler)
        if scheduler.halted is None:  # in an evaluation
            return None
        for executor in scheduler.executors:
            kept.reached(executor, scheduler.halted)
        scheduler.take_in_flight(scheduler.halted, kept)
        return scheduler.halted.at

    (at,) = set(strict_transport.run(built.executors, hosts, fabric, body, **more).values())
    return at, kept.copies


def gone_on(case: Case, hosts, fabric, at: int, copies, **more) -> dict[str, str]:
    built = case.built()

    def body(scheduler, _):
        for executor in scheduler.executors:
            restore_at_cut(copies[executor.program.index], executor, scheduler)
        return held(scheduler.executors, train(case, scheduler, at // MICRO_BATCHES, at))

    return merged(strict_transport.run(built.executors, hosts, fabric, body, **more))


UNCLIPPED = [name for name in COMPUTED if "clip" not in name]
"""The schedulers of the processes below clip by stage."""


@pytest.mark.slow
@pytest.mark.parametrize("name", UNCLIPPED[::7])
def test_an_interrupted_run_continues_on_other_processes(name, fabric):
    """Whoever is asked to stop, and however late the others learn of it; no message is left without its receive."""
    case = COMPUTED[name]
    stages = len(case.built().programs)
    one, other, each = places(stages)
    stops = set()
    for seed, (hosts, asked, forward) in enumerate([(each, 0, 7), (other, 1, 5)]):
        at, copies = interrupted(case, hosts, fabric, asked, forward, seed=seed)
        stops.add(at)
        assert all(len(group.sent) == len(group.received) for group in fabric.groups)
        if at is not None:
            assert len(copies) == stages, "every stage halted, with its messages"
            whole, rest = alone(name), gone_on(case, one, fabric, at, copies, seed=seed)
            assert whole["losses"].endswith(rest["losses"])
            assert {**rest, "losses": whole["losses"]} == whole
    assert stops != {None}


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


@pytest.mark.slow
@settings(max_examples=8)
@given(pipelines(), st.integers(1, 9), st.integers(0, 1000))
def test_any_graph_ends_with_the_same_bits(pipelines, micro_batches, seed):
    one, other, hosts = pipelines
    data = batches((FEATURES,), micro_batches, size=2)
    one.train(data)
    with mock.patch.object(nccl, "dist", fabric := Fabric()):
        strict_transport.run(
            other.executors,
            hosts,
            fabric,
            lambda scheduler, _: scheduler.train(data, range(micro_batches), lambda _: None),
            seed=seed,
        )
    assert same_bits(other.parameters(), one.parameters())
