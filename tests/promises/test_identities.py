"""The identities of the method that one process can show, in float64.

One gradient may differ by 1e-12, fifty updates by 1e-10: rounding alone. Where an identity is exact, bits are compared.

An identity of all methods runs on cases in which every method, schedule, graph, division into stages and accumulation occurs
(`tests.support.method_cases`).
"""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.nn.functional import cross_entropy

from petra_graph.blocks import Reversible
from petra_graph.plugins.kinds import BLOCK
from petra_graph.plugins.local_plugins import resolve_local
from petra_graph.program.method import METHODS
from tests.support.lockstep import recorded_gradients, run_by_clock
from tests.support.method_cases import CASES, DELAYED, EXACT
from tests.support.pipelines import (
    BLOCKS,
    CHAIN,
    GRAPHS,
    REVNET,
    SHAPES,
    batches,
    node,
    pipeline,
    plain_network,
    relative_error,
)

ONE_GRADIENT = 1e-12
FIFTY_UPDATES = 1e-10


def state(modules):
    return {f"{name}/{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}


def plain_training(built, data, accumulation, *, lr=0.05, momentum=0.9, weight_decay=1e-3):
    modules, forward = plain_network(built)
    named = [(name, p) for module in modules.values() for name, p in module.named_parameters()]
    norms = {
        id(p)
        for module in modules.values()
        for part in module.modules()
        if "Norm" in type(part).__name__
        for p in part.parameters(recurse=False)
    }
    bare = [p for name, p in named if name.endswith("bias") or id(p) in norms]
    rest = [p for name, p in named if not (name.endswith("bias") or id(p) in norms)]
    optimizer = torch.optim.SGD(
        [{"params": rest, "weight_decay": weight_decay}, {"params": bare, "weight_decay": 0.0}],
        lr=lr,
        momentum=momentum,
        nesterov=True,
    )
    for start in range(0, len(data), accumulation):
        window = data[start : start + accumulation]
        optimizer.zero_grad()
        for x, target in window:
            (cross_entropy(forward(x), target) / len(window)).backward()
        optimizer.step()
    return state(modules)


def every(some):
    return pytest.mark.parametrize("case", some, ids=str)


def test_every_method_is_in_the_list():
    assert {case.method for case in CASES} == set(METHODS)


@every(EXACT)
def test_without_delay_every_method_is_plain_backpropagation(case):
    updates = 50 if case.accumulation == 1 and case.method in {"reversible-backprop", "backprop"} else 8
    data = batches(SHAPES[case.graph], updates * case.accumulation - (case.accumulation > 1))
    built = case.built(weight_decay=1e-3)
    expected = plain_training(built, data, case.accumulation)
    built.train(data)
    assert relative_error(built.parameters(), expected) < FIFTY_UPDATES


@every([case for case in DELAYED if case.accumulation == 1])
def test_with_learning_rate_zero_every_delay_gives_the_plain_gradient(case):
    data = batches(SHAPES[case.graph], 12)
    built = case.built(rate=lambda _: 0.0)
    modules, forward = plain_network(built)
    found = {executor.program.index: recorded_gradients(executor) for executor in built.executors}
    built.train(data)
    for m, (x, target) in enumerate(data):
        for module in modules.values():
            module.zero_grad()
        cross_entropy(forward(x), target).backward()
        for executor in built.executors:
            expected = {
                f"{name}/{key}": p.grad
                for name in executor.program.nodes
                for key, p in modules[name].named_parameters()
                if p.grad is not None
            }
            assert relative_error(found[executor.program.index][m], expected) < ONE_GRADIENT


@every([evolve(case, stages="one") for case in DELAYED])
def test_one_stage_is_plain_backpropagation(case):
    data = batches(SHAPES[case.graph], 8 * case.accumulation)
    built = case.built(weight_decay=1e-3)
    expected = plain_training(built, data, case.accumulation)
    built.train(data)
    assert relative_error(built.parameters(), expected) < FIFTY_UPDATES


def test_without_delay_petra_is_reversible_backpropagation():
    """They are the same programs, so no training could tell them apart."""
    petra, reversible = (evolve(METHODS[name], name="", schedules=()) for name in ("petra", "reversible-backprop"))
    assert petra == reversible


class Fork(Reversible):
    """One stream to two: a function of it, and itself."""

    streams = 1

    def __init__(self, inputs):
        super().__init__(inputs)
        self.linear = nn.Linear(*inputs[0], *inputs[0])

    def forward(self, x):
        return self.linear(x).tanh(), x

    def inverse(self, y, x):
        return (x,)


@pytest.mark.parametrize("method", ["reversible-backprop", "1f1b-flush"])
def test_a_reversible_block_that_returns_more_streams_than_it_reads(method, monkeypatch):
    monkeypatch.setitem(BLOCKS, "fork", resolve_local(BLOCK, f"{__name__}:Fork", ()))
    nodes = (node("stem", "linear-stem", features=6, streams=1), node("fork", "fork"), CHAIN[-1])
    built = pipeline(nodes, (8,), method=method, weight_decay=1e-3)
    data = batches((8,), 8)
    expected = plain_training(built, data, 1)
    built.train(data)
    assert relative_error(built.parameters(), expected) < FIFTY_UPDATES


DELAYED = [("chain", "lockstep", 1), ("revnet", "lockstep", 3), ("skip", "lockstep", 3), ("branches", "1f1b", 4)]
VERSIONS = [("lockstep", 1), ("lockstep", 4), ("1f1b", 1), ("1f1b", 3)]


@pytest.mark.parametrize(("graph", "schedule", "accumulation"), DELAYED)
def test_a_graph_of_buffered_nodes_under_petra_is_dsp(graph, schedule, accumulation):
    data = batches(SHAPES[graph], 16)
    buffered = [evolve(table, kind="buffered") if "rev-" in table.block else table for table in GRAPHS[graph]]
    petra, dsp = (
        pipeline(nodes, SHAPES[graph], method=method, schedule=schedule, accumulation=accumulation)
        for method, nodes in (("petra", buffered), ("dsp", GRAPHS[graph]))
    )
    for built in (petra, dsp):
        built.train(data)
    expected = dsp.parameters()
    assert all(torch.equal(value, expected[key]) for key, value in petra.parameters().items())


@pytest.mark.parametrize(("schedule", "accumulation"), [("lockstep", 1), ("lockstep", 4), ("1f1b", 3)])
def test_a_kept_graph_is_a_stored_input_run_again_at_the_stored_parameters(schedule, accumulation):
    data = batches(SHAPES["revnet"], 16)
    stored, kept = (
        pipeline(
            REVNET,
            SHAPES["revnet"],
            method="pipedream",
            schedule=schedule,
            accumulation=accumulation,
            settings=settings,
        )
        for settings in ({}, {"keep": {one.name: "graph" for one in REVNET[:-1]}})
    )
    for built in (stored, kept):
        built.train(data)
    assert relative_error(kept.parameters(), stored.parameters()) < FIFTY_UPDATES


@pytest.mark.parametrize(("schedule", "accumulation"), VERSIONS)
def test_parameters_are_kept_once_for_each_version(schedule, accumulation):
    """A stage that is d micro-batches ahead needs ceil(d / k) old versions: PipeDream's truth table at k = 1."""
    data = batches((8,), 24)
    built = pipeline(CHAIN, (8,), method="pipedream", schedule=schedule, accumulation=accumulation)
    most = dict.fromkeys(range(1, 6), 0)
    for executor in built.executors:
        update = executor.update

        def counting(norm=None, executor=executor, update=update):
            update(norm)
            index = executor.program.index
            most[index] = max(most[index], len(executor.versions.copies) if executor.versions else 0)

        executor.update = counting
    built.train(data)
    ahead = {index: (5 - index) * (2 if schedule == "lockstep" else 1) for index in most}
    assert most == {index: -(-d // accumulation) for index, d in ahead.items()}
    assert all(not executor.versions.copies for executor in built.executors if executor.versions)


def test_a_list_of_depths_is_the_schedule_that_has_them():
    data = batches((8,), 20)
    named, listed = (pipeline(CHAIN, (8,), schedule=schedule) for schedule in ("lockstep", (9, 7, 5, 3, 1)))
    for built in (named, listed):
        built.train(data)
    expected = named.parameters()
    assert all(torch.equal(value, expected[key]) for key, value in listed.parameters().items())


@pytest.mark.parametrize(("graph", "accumulation"), [("chain", 1), ("revnet", 3), ("skip", 4), ("branches", 1)])
def test_lockstep_by_a_global_clock_is_lockstep_by_per_stage_order(graph, accumulation):
    data = batches(SHAPES[graph], 18)  # the deepest stage has 11 in flight
    kwargs = {"schedule": "lockstep", "accumulation": accumulation}
    by_order = pipeline(GRAPHS[graph], SHAPES[graph], **kwargs)
    by_clock = pipeline(GRAPHS[graph], SHAPES[graph], **kwargs)
    by_order.train(data)
    run_by_clock(by_clock.executors, data, accumulation)
    expected, found = by_clock.parameters(), by_order.parameters()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_partition_does_not_change_exact_gradients():
    """Without delay, cuts only move work: the same bits for any stages."""
    data = batches(SHAPES["revnet"], 10)
    cuts = (("stem", "a0"), ("a1", "down", "b0"), ("head",))
    one = pipeline(REVNET, SHAPES["revnet"], schedule="sequential")
    other = pipeline(REVNET, SHAPES["revnet"], schedule="sequential", stages=cuts)
    for built in (one, other):
        built.train(data)
    assert all(torch.equal(value, other.parameters()[key]) for key, value in one.parameters().items())


# --- what single nodes keep ------------------------------------------------------------------------------------------

REVERSIBLE = ("a0", "a1", "b0")
BODY = ("stem", "down", *REVERSIBLE)
MIXED = {"a0": "input", "a1": "graph", "down": "graph"}


def all_of(keeps, names=BODY):
    return {"keep": dict.fromkeys(names, keeps)}


def revnet_trained(settings=None, **how):
    built = pipeline(REVNET, SHAPES["revnet"], **{"schedule": "1f1b", "accumulation": 2, **how}, settings=settings)
    built.train(batches(SHAPES["revnet"], 7))
    return built.parameters()


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ({"settings": all_of("input")}, {"method": "dsp"}),
        ({"method": "dsp", "settings": all_of("nothing", REVERSIBLE)}, {"method": "petra"}),
        ({"method": "pipedream", "settings": all_of("nothing", REVERSIBLE)}, {"method": "delayed-reconstructed"}),
        (
            {"settings": {**all_of("graph"), "allow_stored": True}},
            {"method": "pipedream", "settings": all_of("graph")},
        ),
        ({"method": "1f1b-flush", "settings": all_of("graph")}, {"method": "1f1b-flush"}),
    ],
    ids=str,
)
def test_nodes_that_all_keep_what_another_method_keeps_have_its_bits(asked, same):
    found, expected = revnet_trained(**asked), revnet_trained(**same)
    assert all(torch.equal(value, expected[key]) for key, value in found.items())


def test_without_delay_any_choice_is_plain_autograd():
    data = batches(SHAPES["revnet"], 10)
    built = pipeline(REVNET, SHAPES["revnet"], schedule="sequential", settings={"keep": MIXED}, weight_decay=1e-3)
    expected = plain_training(built, data, 1)
    built.train(data)
    assert relative_error(built.parameters(), expected) < FIFTY_UPDATES
    plain, mixed = (revnet_trained({"keep": kept}, method="1f1b-flush") for kept in ({}, MIXED))
    assert relative_error(mixed, plain) < FIFTY_UPDATES


def test_under_delay_a_node_that_stores_its_input_is_not_one_that_reconstructs():
    """The semantics page says so: reconstruction inverts with newer parameters than those of the forward."""
    assert relative_error(revnet_trained({"keep": {"a0": "input"}}), revnet_trained()) > 1e-6
