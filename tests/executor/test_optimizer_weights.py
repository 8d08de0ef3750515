"""Predicted forwards and corrected backwards: when they are asked for, and what stays as it is around them. Their formulas are those of petra-graph-studies."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from petra_graph.blocks import Buffered, Head
from petra_graph.executor.stage import StageObserver
from petra_graph.plugins.kinds import BLOCK
from petra_graph.plugins.local_plugins import resolve_local
from tests.support.pipelines import BLOCKS, GRAPHS, REVNET, SHAPES, Quadratic, batches, node, pipeline, relative_error

EXACT = 1e-12
SCALES = (node("first", "scale"), node("second", "scale"), node("head", "scale-head"))
WEIGHTS = (0.9, -1.1, 1.3)
RATE = 0.02


class Scale(Buffered):
    """One number times a parameter."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, stream):
        return (self.weight * stream,)


class ScaleHead(Head, Scale):
    """The same as a head."""


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    for name, kind in (("scale", "Scale"), ("scale-head", "ScaleHead")):
        monkeypatch.setitem(BLOCKS, name, resolve_local(BLOCK, f"{__name__}:{kind}", ()))


def scales(depths, **how):
    """A pipeline of three numbers that are multiplied, each a stage of the given depth."""
    built = pipeline(SCALES, (1,), method="petra", schedule=depths, batch=1, rate=lambda _: RATE, lr=RATE, **how)
    for executor, weight in zip(built.executors, WEIGHTS, strict=True):
        executor.updater.parameters[0].data.fill_(weight)
    for _, runner in built.executors[-1].runners[-1:]:
        runner.loss = Quadratic()
    return built


def samples(count):
    generator = torch.Generator().manual_seed(0)
    return [(0.5 + torch.rand(1, 1, generator=generator).double(), torch.tensor([m % 3])) for m in range(count)]


CORRECTIONS = {
    "prediction": {"predict": True},
    "discrepancy": {"correct_discrepancy": True},
    "error feedback": {"correction": "error-feedback"},
    "discrepancy and error feedback": {"correct_discrepancy": True, "correction": "error-feedback"},
}


UNDELAYED = {
    "backprop": {"method": "backprop"},
    "gpipe": {"method": "gpipe", "accumulation": 2},
    "sequential": {"schedule": "sequential"},
}


@pytest.mark.parametrize(
    ("undelayed", "optimizer", "correction"),
    [
        ("backprop", "sgd", "prediction"),
        ("backprop", "adam", "discrepancy"),
        ("gpipe", "adamw", "error feedback"),
        ("gpipe", "sgd", "discrepancy"),
        ("sequential", "adam", "discrepancy and error feedback"),
        ("sequential", "adamw", "prediction"),
    ],
)
def test_without_delay_the_bits_are_those_of_the_optimizer_without_correction(undelayed, optimizer, correction):
    how = UNDELAYED[undelayed]
    data = batches(SHAPES["revnet"], 6)
    found = []
    for options in ({}, CORRECTIONS[correction]):
        built = pipeline(REVNET, SHAPES["revnet"], optimizer=optimizer, **options, **how)
        built.train(data)
        found.append(built.parameters())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


METHODS = {"predicted_weights": {"predict": True}, "earlier_weights": {"correct_discrepancy": True}}


class Watches(StageObserver):
    """Notes the weight at the operations of a stage; its updates, and what it asked of its optimizer."""

    def __init__(self, executor, method):
        self.executor, (self.parameter,) = executor, executor.updater.parameters
        self.asked: dict[int, Counter[int]] = {}
        self.forwards, self.backwards = [], []
        ask = getattr(executor.updater.optimizer, method)

        def counted(delay):
            self.asked.setdefault(executor.updater.updates, Counter())[delay] += 1
            return ask(delay)

        setattr(executor.updater.optimizer, method, counted)

    def segment_forward(self, micro_batch, segment, inputs):
        self.forwards.append(self.parameter.item())

    def segment_backward(self, micro_batch, segment):
        self.backwards.append(self.parameter.item())


def watched(built, method, index=0):
    watches = Watches(built.executors[index], method)
    watches.executor.observe(watches)
    return watches


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("k", "depths"), [(1, (3, 2, 1)), (2, (4, 2, 1)), (3, (5, 3, 1))])
def test_each_delay_is_asked_for_once_between_two_updates(k, depths, method):
    built = scales(depths, accumulation=k, **METHODS[method])
    watches, facts = watched(built, method), built.executors[0].updater.stage
    built.train(samples(8 * k))
    full = {update: asked for update, asked in watches.asked.items() if update > 1}
    assert len(full) > 3
    for asked in full.values():
        assert set(asked) <= {int(facts.steady), -int(-facts.steady // 1)}
        assert set(asked.values()) == {1}
    assert all(set(asked.values()) == {1} for asked in watches.asked.values())


def test_the_backward_and_what_comes_after_a_predicted_forward_have_the_true_weights():
    built = scales((3, 2, 1), predict=True)
    watches = watched(built, "predicted_weights")
    memory = watches.parameter.data_ptr()
    built.train(samples(6))
    assert watches.parameter.data_ptr() == memory
    assert watches.backwards != watches.forwards
    assert watches.backwards[2] != watches.forwards[4]  # both between the second update and the third
    assert len(set(watches.forwards[:3])) == 1  # no momentum yet


def test_the_forward_and_what_comes_after_a_corrected_backward_have_the_true_weights():
    built = scales((3, 2, 1), correct_discrepancy=True)
    watches = watched(built, "earlier_weights")
    memory, held = watches.parameter.data_ptr(), [watches.parameter.item()]
    watches.updated = lambda: held.append(watches.parameter.item())

    class Updates(StageObserver):
        @contextmanager
        def update(self):
            yield
            watches.updated()

    watches.executor.observe(Updates())
    built.train(samples(6))
    assert watches.parameter.data_ptr() == memory
    assert watches.forwards == held[:1] * 3 + held[1:4]
    assert watches.backwards[0] == held[0]  # not late
    assert watches.backwards[1] == pytest.approx(held[0], rel=EXACT)  # one update late, and the mean is of one step
    assert not set(watches.backwards[2:]) & set(held)


class Stores(StageObserver):
    """Gives an optimizer that corrects the discrepancy the weights of the forward themselves."""

    def __init__(self, updater):
        self.parameters = updater.parameters
        self.versions = [self.values()]
        updater.optimizer.earlier_weights = lambda delay: [
            (own, value.clone()) for own, value in zip(self.parameters, self.versions[-1 - delay], strict=True)
        ]

    def values(self):
        return [one.detach().clone() for one in self.parameters]

    @contextmanager
    def update(self):
        yield
        self.versions.append(self.values())


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("graph", ["revnet", "skip"])
def test_with_a_perfect_estimate_the_training_is_that_of_stored_weights(graph, accumulation):
    """Reconstruction, recomputation and both derivatives use the estimate: then PETRA is PipeDream, up to rounding."""
    how = {"schedule": "lockstep", "accumulation": accumulation}
    data = batches(SHAPES[graph], 16)
    stored = pipeline(GRAPHS[graph], SHAPES[graph], method="pipedream", **how)
    estimated = pipeline(GRAPHS[graph], SHAPES[graph], correct_discrepancy=True, **how)
    for executor in estimated.executors:
        if executor.updater.parameters:
            executor.observe(Stores(executor.updater))
    uncorrected = pipeline(GRAPHS[graph], SHAPES[graph], **how)
    for one in (stored, estimated, uncorrected):
        one.train(data)
    assert relative_error(estimated.parameters(), stored.parameters()) < 1e-10
    assert relative_error(uncorrected.parameters(), stored.parameters()) > 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_a_pass_that_fails_leaves_the_true_weights(method):
    built = scales((3, 2, 1), **METHODS[method])
    built.train(samples(6))
    executor = built.executors[0]
    exchanged = executor.predicted if method == "predicted_weights" else executor.earlier
    (parameter,), memory = executor.updater.parameters, executor.updater.parameters[0].data_ptr()
    with exchanged.of(8):
        assert parameter.data_ptr() != memory
    with pytest.raises(ZeroDivisionError), exchanged.of(8):
        raise ZeroDivisionError
    assert parameter.data_ptr() == memory


@pytest.mark.parametrize("method", METHODS)
def test_the_values_have_the_layout_of_their_parameter(method):
    built = pipeline(REVNET, SHAPES["revnet"], schedule="lockstep", **METHODS[method])
    updater = built.executors[0].updater
    ask = getattr(updater.optimizer, method)
    setattr(updater.optimizer, method, lambda delay: [(one, value.contiguous()) for one, value in ask(delay)])
    other = pipeline(REVNET, SHAPES["revnet"], schedule="lockstep", **METHODS[method])
    data = batches(SHAPES["revnet"], 16)
    for one in (built, other):
        one.train(data)
    found = [one.parameters() for one in (built, other)]
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    strided = [one for one in updater.parameters if not one.is_contiguous()]
    assert strided
    executor = built.executors[0]
    with (executor.predicted if method == "predicted_weights" else executor.earlier).of(16):
        assert all(not one.is_contiguous() for one in strided)
