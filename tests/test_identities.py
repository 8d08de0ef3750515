"""The identities of the method that one process can show, in float64.

One gradient may differ by 1e-12, fifty updates by 1e-10: rounding alone. Where an identity is exact, bits are compared.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.pipelines import (
    BRANCHES,
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
ACCUMULATIONS = (1, 3, 4)


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


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("method", "schedule"), [("petra", "sequential"), ("backprop", None)])
def test_without_delay_petra_is_plain_backpropagation(graph, method, schedule, accumulation):
    data = batches(SHAPES[graph], 50 * accumulation - 1)
    built = pipeline(
        GRAPHS[graph], SHAPES[graph], method=method, schedule=schedule, accumulation=accumulation, weight_decay=1e-3
    )
    expected = plain_training(built, data, accumulation)
    built.train(data)
    assert relative_error(built.parameters(), expected) < FIFTY_UPDATES


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("schedule", ["lockstep", "1f1b", "sequential"])
def test_with_learning_rate_zero_every_delay_gives_the_plain_gradient(graph, schedule):
    data = batches(SHAPES[graph], 12)
    built = pipeline(GRAPHS[graph], SHAPES[graph], schedule=schedule, rate=lambda _: 0.0)
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


def recorded_gradients(executor):
    """The gradient at each update of a stage, as it trains."""
    seen: list[dict[str, torch.Tensor]] = []
    step = executor.updater.step

    def recording(norm=None):
        seen.append(
            {
                f"{name}/{key}": p.grad.clone()
                for name, module in executor.modules.items()
                for key, p in module.named_parameters()
                if p.grad is not None
            }
        )
        step(norm)

    executor.updater.step = recording
    return seen


@pytest.mark.parametrize("schedule", ["lockstep", "1f1b", "sequential"])
@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_one_stage_is_plain_backpropagation(graph, schedule, accumulation):
    data = batches(SHAPES[graph], 50 * accumulation)
    whole = (tuple(table.name for table in GRAPHS[graph]),)
    built = pipeline(
        GRAPHS[graph],
        SHAPES[graph],
        schedule=schedule,
        accumulation=accumulation,
        stages=whole,
        weight_decay=1e-3,
    )
    expected = plain_training(built, data, accumulation)
    built.train(data)
    assert relative_error(built.parameters(), expected) < FIFTY_UPDATES


def test_two_stages_under_1f1b_have_staleness_one():
    """Stage 1's forward of m uses parameters from before the update by m - 1: by hand, in plain autograd."""
    nodes = (node("stem", "linear-stem", features=6, streams=1), node("head", "pool-linear", outputs=5))
    data = batches((8,), 20)
    built = pipeline(nodes, (8,), schedule="1f1b", momentum=0.0, nesterov=False, weight_decay=0.0)
    modules, _ = plain_network(built)
    stem, head = modules["stem"], modules["head"]
    versions = [copy.deepcopy(stem)]
    for m, (x, target) in enumerate(data):
        (h,) = versions[max(0, m - 1)](x)
        h = h.detach().requires_grad_()
        (logits,) = head(h)
        gradient, *head_gradients = torch.autograd.grad(cross_entropy(logits, target), [h, *head.parameters()])
        stem_gradients = torch.autograd.grad(stem(x), list(stem.parameters()), gradient)
        with torch.no_grad():
            for p, g in zip([*head.parameters(), *stem.parameters()], [*head_gradients, *stem_gradients], strict=True):
                p -= 0.05 * g
        versions.append(copy.deepcopy(stem))
    built.train(data)
    assert relative_error(built.parameters(), state(modules)) < FIFTY_UPDATES


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_lockstep_by_a_global_clock_is_lockstep_by_per_stage_order(graph, accumulation):
    data = batches(SHAPES[graph], 30)
    kwargs = {"schedule": "lockstep", "accumulation": accumulation}
    by_order = pipeline(GRAPHS[graph], SHAPES[graph], **kwargs)
    by_clock = pipeline(GRAPHS[graph], SHAPES[graph], **kwargs)
    by_order.train(data)
    run_by_clock(by_clock.executors, data, accumulation)
    expected, found = by_clock.parameters(), by_order.parameters()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def run_by_clock(executors, data, accumulation):
    """PETRA equation (5): at each tick every stage does one forward, then one backward, then its update.

    A stage's forward of m falls on tick m + D - d and its backward on tick m + D + d, where d is its distance from the
    head and D the source's.
    """
    distance = [(executor.program.depth - 1) // 2 for executor in executors]
    deepest = max(distance)
    edges = {}
    done = [0] * len(executors)
    last = len(data) - 1
    for tick in range(len(data) + 2 * deepest):
        for executor, d in zip(executors, distance, strict=True):
            m = tick - (deepest - d)
            if not 0 <= m <= last:
                continue
            received = {
                edge: (data[m][0],) if edge.producer == "input" else edges.pop(("forward", edge, m))
                for edge in executor.program.receives
            }
            target = data[m][1] if executor.program.holds_head else None
            for edge, streams in executor.forward(m, received, target).sent.items():
                edges["forward", edge, m] = streams
        for index in reversed(range(len(executors))):
            executor, d = executors[index], distance[index]
            m = tick - (deepest + d)
            if not 0 <= m <= last:
                continue
            received = {edge: edges.pop(("backward", edge, m)) for edge in executor.program.sends}
            for edge, message in executor.backward(m, received).items():
                edges["backward", edge, m] = message
            done[index] += 1
            if done[index] % accumulation == 0 or m == last:
                executor.updater.average()
                executor.updater.step()
    assert not edges


@pytest.mark.parametrize("schedule", ["lockstep", "1f1b"])
def test_delay_changes_the_result(schedule):
    """The identities above would hold for a runtime that never delays; this one shows that ours does."""
    data = batches((8,), 20)
    exact, delayed = pipeline(CHAIN, (8,), schedule="sequential"), pipeline(CHAIN, (8,), schedule=schedule)
    exact.train(data)
    delayed.train(data)
    assert relative_error(delayed.parameters(), exact.parameters()) > 1e-4


@pytest.mark.parametrize("nodes", [REVNET, BRANCHES], ids=["revnet", "branches"])
def test_same_seed_gives_the_same_bits(nodes):
    shape = SHAPES["revnet" if nodes is REVNET else "branches"]
    one, other = (pipeline(nodes, shape, schedule="1f1b", compute="float32") for _ in range(2))
    for built in (one, other):
        built.train(batches(shape, 20))
    assert all(torch.equal(value, other.parameters()[key]) for key, value in one.parameters().items())


def test_partition_does_not_change_exact_gradients():
    """Without delay, cuts only move work: the same bits for any stages."""
    data = batches(SHAPES["revnet"], 10)
    cuts = (("stem", "a0"), ("a1", "down", "b0"), ("head",))
    one = pipeline(REVNET, SHAPES["revnet"], schedule="sequential")
    other = pipeline(REVNET, SHAPES["revnet"], schedule="sequential", stages=cuts)
    for built in (one, other):
        built.train(data)
    assert all(torch.equal(value, other.parameters()[key]) for key, value in one.parameters().items())
