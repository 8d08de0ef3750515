"""The identities of the method that one process can show, in float64.

One gradient may differ by 1e-12, fifty updates by 1e-10: rounding alone. Where an identity is exact, bits are compared.
"""

from typing import Any

import pytest
import torch
from attrs import evolve
from torch.nn.functional import cross_entropy

from petra_graph.program.method import METHODS
from tests.support.method_cases import CASES, DELAYED, EXACT
from tests.support.pipelines import (
    CHAIN,
    GRAPHS,
    REVNET,
    SHAPES,
    batches,
    pipeline,
    plain_gradients,
    plain_network,
    recorded_gradients,
    relative_error,
    run_by_clock,
    same_bits,
)

ONE_GRADIENT = 1e-12
FIFTY_UPDATES = 1e-10


def every(some):
    return pytest.mark.parametrize("case", some, ids=str)


def test_every_method_is_in_the_list():
    assert {case.method for case in CASES} == set(METHODS)


# --- without delay: plain backpropagation ----------------------------------------------------------------------------


def assert_plain(built, data, accumulation=1):
    """Train the pipeline, and the same modules as one under autograd, with Nesterov momentum and weight decay as the recipe has them."""
    modules, forward = plain_network(built)
    parts = [part for module in modules.values() for part in module.modules()]
    norms = {id(p) for part in parts if "Norm" in type(part).__name__ for p in part.parameters(recurse=False)}
    named = [(name, p) for module in modules.values() for name, p in module.named_parameters()]
    groups = [
        {"params": [p for name, p in named if (name.endswith("bias") or id(p) in norms) == bare], "weight_decay": decay}
        for bare, decay in ((False, 1e-3), (True, 0.0))
    ]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
    for start in range(0, len(data), accumulation):
        window = data[start : start + accumulation]
        optimizer.zero_grad()
        for x, target in window:
            (cross_entropy(forward(x), target) / len(window)).backward()
        optimizer.step()
    built.train(data)
    expected = {f"{name}/{key}": value for name, one in modules.items() for key, value in one.state_dict().items()}
    assert relative_error(built.parameters(), expected) < FIFTY_UPDATES


@every([*EXACT, *{case.method: evolve(case, stages="one") for case in DELAYED}.values()])
def test_without_delay_every_method_is_plain_backpropagation(case):
    updates = 50 if case.method == "reversible-backprop" else 8
    data = batches(SHAPES[case.graph], updates * case.accumulation - (case.accumulation > 1))
    assert_plain(case.built(weight_decay=1e-3), data, case.accumulation)


MIXED = {"a0": "input", "a1": "graph", "down": "graph"}


@pytest.mark.parametrize("how", [{"schedule": "sequential"}, {"method": "1f1b-flush", "accumulation": 2}])
def test_without_delay_nodes_may_keep_anything(how):
    built = pipeline(REVNET, SHAPES["revnet"], **how, settings={"keep": MIXED}, weight_decay=1e-3)
    assert_plain(built, batches(SHAPES["revnet"], 10), how.get("accumulation", 1))


def test_without_delay_petra_is_reversible_backpropagation():
    """They are the same programs, so no training could tell them apart."""
    petra, reversible = (evolve(METHODS[name], name="", schedules=()) for name in ("petra", "reversible-backprop"))
    assert petra == reversible


# --- with any delay --------------------------------------------------------------------------------------------------


@every([case for case in DELAYED if case.accumulation == 1])
def test_with_learning_rate_zero_every_delay_gives_the_plain_gradient(case):
    data = batches(SHAPES[case.graph], 12)
    built = case.built(rate=lambda _: 0.0)
    modules, forward = plain_network(built)
    found = [recorded_gradients(executor) for executor in built.executors]
    built.train(data)
    for m, batch in enumerate(data):
        seen = {key: value for of_stage in found for key, value in of_stage[m].items()}
        assert relative_error(seen, plain_gradients(modules, forward, batch)) < ONE_GRADIENT


def buffered(graph):
    return [evolve(table, kind="buffered") if "rev-" in table.block else table for table in GRAPHS[graph]]


REVERSIBLE = ("a0", "a1", "b0")
BODY = ("stem", "down", *REVERSIBLE)
LATE: dict[str, Any] = {"schedule": "1f1b", "accumulation": 2}
EQUALS = [
    # A graph of buffered nodes under petra is dsp.
    ("chain", {"nodes": buffered("chain"), "schedule": "lockstep"}, {"method": "dsp", "schedule": "lockstep"}),
    ("branches", {"nodes": buffered("branches"), **LATE}, {"method": "dsp", **LATE}),
    # A list of depths is the schedule that has them.
    ("chain", {"schedule": (9, 7, 5, 3, 1)}, {"schedule": "lockstep"}),
    # Without delay, cuts only move work.
    (
        "revnet",
        {"schedule": "sequential", "stages": (("stem", "a0"), ("a1", "down", "b0"), ("head",))},
        {"schedule": "sequential"},
    ),
    # Nodes that all keep what another method keeps have its bits.
    ("revnet", {**LATE, "method": "dsp", "keep": dict.fromkeys(REVERSIBLE, "nothing")}, LATE),
    (
        "revnet",
        {**LATE, "method": "pipedream", "keep": dict.fromkeys(REVERSIBLE, "nothing")},
        {**LATE, "method": "delayed-reconstructed"},
    ),
    (
        "revnet",
        {**LATE, "keep": dict.fromkeys(BODY, "graph"), "allow_stored": True},
        {**LATE, "method": "pipedream", "keep": dict.fromkeys(BODY, "graph")},
    ),
]


def trained(graph, count, nodes=None, **how):
    settings = {key: how.pop(key) for key in ("keep", "allow_stored") if key in how}
    built = pipeline(nodes or GRAPHS[graph], SHAPES[graph], settings=settings, **how)
    built.train(batches(SHAPES[graph], count))
    return built.parameters()


@pytest.mark.parametrize(("graph", "one", "other"), EQUALS)
def test_two_ways_to_say_one_training_have_the_same_bits(graph, one, other):
    assert same_bits(trained(graph, 16, **one), trained(graph, 16, **other))


def test_under_delay_a_node_that_stores_its_input_is_not_one_that_reconstructs():
    """The semantics page says so: reconstruction inverts with newer parameters than those of the forward."""
    stored = trained("revnet", 7, **LATE, keep={"a0": "input"})
    assert relative_error(stored, trained("revnet", 7, **LATE)) > 1e-6


# --- stored parameters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "accumulation"), [("lockstep", 1), ("1f1b", 3)])
def test_a_kept_graph_is_a_stored_input_run_again_at_the_stored_parameters(schedule, accumulation):
    how = {"method": "pipedream", "schedule": schedule, "accumulation": accumulation}
    kept = trained("revnet", 16, **how, keep=dict.fromkeys(BODY, "graph"))
    assert relative_error(kept, trained("revnet", 16, **how)) < FIFTY_UPDATES


@pytest.mark.parametrize(("schedule", "accumulation"), [("lockstep", 1), ("lockstep", 4), ("1f1b", 1), ("1f1b", 3)])
def test_parameters_are_kept_once_for_each_version(schedule, accumulation):
    """A stage that is d micro-batches ahead needs ceil(d / k) old versions: PipeDream's truth table at k = 1."""
    built = pipeline(CHAIN, (8,), method="pipedream", schedule=schedule, accumulation=accumulation)
    most = dict.fromkeys(range(1, 6), 0)
    for executor in built.executors:
        update = executor.update

        def counting(norm=None, executor=executor, update=update):
            update(norm)
            index = executor.program.index
            most[index] = max(most[index], len(executor.versions.copies) if executor.versions else 0)

        executor.update = counting
    built.train(batches((8,), 24))
    ahead = {index: (5 - index) * (2 if schedule == "lockstep" else 1) for index in most}
    assert most == {index: -(-d // accumulation) for index, d in ahead.items()}
    assert all(not executor.versions.copies for executor in built.executors if executor.versions)


# --- the order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("graph", "accumulation"), [("revnet", 3), ("skip", 4), ("branches", 1)])
def test_lockstep_by_a_global_clock_is_lockstep_by_per_stage_order(graph, accumulation):
    data = batches(SHAPES[graph], 18)  # the deepest stage has 11 in flight
    by_order, by_clock = (
        pipeline(GRAPHS[graph], SHAPES[graph], schedule="lockstep", accumulation=accumulation) for _ in range(2)
    )
    by_order.train(data)
    run_by_clock(by_clock.executors, data, accumulation)
    assert same_bits(by_order.parameters(), by_clock.parameters())
