"""The plan's memory is the run's memory, stage by stage and device by device.

The promise is 5 percent. What is left out is one scalar for each stream in flight, so it is nearer to the byte wherever a
stream is more than a few values.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from petra_graph.blocks import Buffered, Head
from petra_graph.compiler.stage_memory import StageMemory
from petra_graph.plugins.kinds import BLOCK
from petra_graph.plugins.local_plugins import resolve_local
from tests.support.costs import devices_predicted_and_measured, predicted_and_measured
from tests.support.method_cases import MethodCase
from tests.support.pipelines import BLOCKS, CLASSES, GRAPHS, REVNET, SHAPES, node

pytestmark = pytest.mark.slow
PROMISED = 0.05
NEAR = 0.002
CASES = (
    MethodCase("revnet", "one a node", 1, "backprop", "sequential"),
    MethodCase("revnet", "one a node", 1, "reversible-backprop", "sequential"),
    MethodCase("revnet", "one a node", 1, "pipedream", "lockstep"),
    MethodCase("revnet", "one a node", 3, "pipedream", "1f1b"),
    MethodCase("revnet", "one a node", 1, "dsp", "1f1b"),
    MethodCase("revnet", "one a node", 1, "delayed-reconstructed", "lockstep"),
    MethodCase("revnet", "one a node", 1, "petra", "lockstep"),
    MethodCase("revnet", "one a node", 3, "1f1b-flush", "1f1b"),
    MethodCase("revnet", "one a pair", 3, "gpipe", "fill-drain"),
    MethodCase("revnet", "one a node", 1, "paci", "1f1b"),
    MethodCase("chain", "one a pair", 3, "paci", "lockstep"),
    MethodCase("chain", "one a node", 1, "backprop", "sequential"),
    MethodCase("skip", "one a node", 1, "dsp", "sequential"),
    MethodCase("branches", "one a node", 1, "petra", "1f1b"),
)
IMAGE = (3, 12, 12)
DEEP = (
    node("stem", "conv-stem", channels=4),
    *(node(f"rev{index}", "rev-basic") for index in range(12)),
    node("head", "pool-linear", outputs=CLASSES),
)
BY_FOURS = (
    ("stem",),
    *(tuple(f"rev{index}" for index in range(first, first + 4)) for first in range(0, 12, 4)),
    ("head",),
)
RESNET = (
    node("stem", "conv-stem", channels=8, streams=1),
    *(node(f"res{index}", "res-basic", channels=8) for index in range(4)),
    node("head", "pool-linear", outputs=CLASSES),
)
TWO_EQUAL_STREAMS = (
    node("stem", "conv-stem", channels=8, streams=1),
    node("twice", "twice"),
    *(node(f"rev{index}", "rev-basic") for index in range(2)),
    node("head", "pool-linear", outputs=CLASSES),
)


class Twice(Buffered):
    """One tensor as both streams, as embeddings give it."""

    def forward(self, stream):
        doubled = 2.0 * stream
        return doubled, doubled


def deviation(*arguments, **settings) -> float:
    predicted, measured = predicted_and_measured(*arguments, **settings)
    return max(abs(stage.total / found - 1) for stage, found in zip(predicted, measured, strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_method(case):
    if case.graph == "revnet":
        assert deviation(REVNET, IMAGE, **case.settings) < NEAR
    else:  # Streams are of six values here, so that the scalars count.
        assert deviation(GRAPHS[case.graph], SHAPES[case.graph], batch=16, **case.settings) < PROMISED


@pytest.mark.parametrize(("method", "schedule"), [("petra", "lockstep")])
def test_a_deep_narrow_revnet(method, schedule):
    # In five stages, since a tracked run of 14 takes long; tools/bench/memory.py has one a block.
    assert deviation(DEEP, IMAGE, method=method, schedule=schedule, stages=BY_FOURS, batch=8) < NEAR


@pytest.mark.parametrize("method", ["pipedream"])
def test_several_nodes_in_a_segment(method):
    cut = (("stem", "res0", "res1"), ("res2", "res3"), ("head",))
    assert deviation(RESNET, IMAGE, method=method, stages=cut) < NEAR


@pytest.mark.parametrize("schedule", ["lockstep"])
def test_one_tensor_as_two_streams(monkeypatch, schedule):
    monkeypatch.setitem(BLOCKS, "twice", resolve_local(BLOCK, f"{__name__}:Twice", ()))
    assert deviation(TWO_EQUAL_STREAMS, IMAGE, method="petra", schedule=schedule) < NEAR


class TiedStem(Buffered):
    """A linear layer whose weight the head has too."""

    shared_parameters: ClassVar = {"tied.weight": "embedding"}

    def __init__(self, inputs) -> None:
        super().__init__(inputs)
        self.tied = nn.Linear(40, 24, bias=False)

    def forward(self, x):
        return self.tied(x)


class Own(Buffered):
    def __init__(self, inputs) -> None:
        super().__init__(inputs)
        self.into, self.out = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x):
        return x + self.out(torch.tanh(self.into(x)))


class TiedHead(Head):
    """Layers of its own, then the stem's."""

    shared_parameters: ClassVar = {"tied.weight": "embedding"}

    def __init__(self, inputs) -> None:
        super().__init__(inputs)
        self.norm, self.into = nn.LayerNorm(24), nn.Linear(24, 40)
        self.tied = nn.Linear(40, 24, bias=False)

    def forward(self, x):
        return self.tied(self.into(self.norm(x)))


TIED = [("backprop", (("stem", "own", "head"),)), ("gpipe", (("stem", "own"), ("head",)))]


@pytest.mark.parametrize(("method", "stages"), TIED)
def test_what_nodes_of_a_stage_share_is_counted_once(monkeypatch, method, stages):
    """Parameter, gradient and optimizer state were counted for each node; a gradient exists from the head's backward on."""
    optimizer, batch = ("adam", 64) if method == "backprop" else ("sgd", 2)
    nodes = []
    for name, block in (("stem", TiedStem), ("own", Own), ("head", TiedHead)):
        monkeypatch.setitem(BLOCKS, name, resolve_local(BLOCK, f"{__name__}:{block.__name__}", ()))
        nodes.append(node(name, name))
    settings = {"method": method, "optimizer": optimizer, "batch": batch, "accumulation": 2, "stages": stages}
    predicted, measured = predicted_and_measured(nodes, (40,), untie=True, **settings)
    assert [stage.total for stage in predicted] == pytest.approx(measured, rel=0.01)
    values = 2 * 600 + 48 + 25 * 40 + len(stages) * 24 * 40
    assert sum(stage.parameters for stage in predicted) == 4 * values


@pytest.mark.parametrize("settings", [{"compute": "bfloat16"}, {"optimizer": "soap", "max_precond_dim": 20}], ids=str)
def test_other_settings(settings):
    assert deviation(REVNET, IMAGE, **settings) < NEAR


def test_a_model_that_forgets_the_buffers_is_found_out(monkeypatch):
    monkeypatch.setattr(StageMemory, "buffered", lambda *_: [])
    monkeypatch.setattr(StageMemory, "restored", lambda *_: [])
    assert deviation(REVNET, IMAGE, method="dsp") > PROMISED


SHARED = [
    ("backprop", "sequential", "a", "arrival"),
    ("1f1b-flush", "1f1b", "a", "static"),
    ("pipedream", "lockstep", "ab", "arrival"),
    ("petra", "1f1b", "ab", "static"),
    ("petra", "1f1b", "abc", "arrival"),
]


@pytest.mark.parametrize(("method", "schedule", "devices", "policy"), SHARED)
def test_every_method_on_shared_devices(method, schedule, devices, policy):
    """A shared device was predicted as the sum of its stages' peaks: on one device, more than twice what it held."""
    predicted, measured = devices_predicted_and_measured(
        REVNET, IMAGE, devices=devices, policy=policy, method=method, schedule=schedule, accumulation=2
    )
    assert predicted.keys() == measured.keys() == set(devices)
    assert max(abs(predicted[name].total / measured[name] - 1) for name in devices) < NEAR


@pytest.mark.parametrize(("graph", "devices"), [("skip", ("a", "b")), ("branches", ("a",))])
def test_graphs_on_shared_devices(graph, devices):
    predicted, measured = devices_predicted_and_measured(
        GRAPHS[graph], SHAPES[graph], devices=devices, policy="arrival", batch=16, method="petra", schedule="1f1b"
    )
    assert max(abs(predicted[name].total / measured[name] - 1) for name in devices) < PROMISED


PREDICTED = 0.01
PREDICT, DISCREPANCY = {"predict": True}, {"correct_discrepancy": True}
DELAYED = [
    (PREDICT, {"optimizer": "sgd"}, ("lockstep", 1)),
    (PREDICT, {"optimizer": "adam"}, ("1f1b", 3)),
    (DISCREPANCY, {"optimizer": "sgd", "weight_decay": 1e-4, "nesterov": False}, ((7, 2, 2, 2, 1, 1), 2)),
    (DISCREPANCY, {"optimizer": "adamw", "correction": "spike"}, ("lockstep", 1)),
]


@pytest.mark.parametrize(
    ("correction", "options", "order"),
    DELAYED,
    ids=str,
)
def test_parameters_for_a_delay(correction, options, order):
    schedule, accumulation = order
    how = {"schedule": schedule, "accumulation": accumulation, **correction, **options}
    predicted, measured = predicted_and_measured(REVNET, IMAGE, **how)
    assert max(abs(stage.total / found - 1) for stage, found in zip(predicted, measured, strict=True)) < PREDICTED
    assert predicted[0].parameter_buffer > 0
    assert predicted[-1].parameter_buffer == 0


@pytest.mark.parametrize(("devices", "correction"), [("ab", DISCREPANCY)], ids=str)
def test_parameters_for_a_delay_on_shared_devices(devices, correction):
    predicted, measured = devices_predicted_and_measured(
        REVNET, IMAGE, devices=devices, policy="arrival", schedule="1f1b", **correction
    )
    assert max(abs(predicted[name].total / measured[name] - 1) for name in devices) < PREDICTED


@pytest.mark.parametrize("correction", [PREDICT], ids=str)
def test_a_model_that_forgets_the_parameters_for_a_delay_is_found_out(monkeypatch, correction):
    monkeypatch.setattr(StageMemory, "hold_for_delay", lambda *_: None)
    assert deviation(REVNET, IMAGE, schedule="lockstep", **correction) > PREDICTED


@pytest.mark.parametrize(
    ("optimizer", "schedule", "accumulation"), [("sgd", "1f1b", 5), ("adam", (2, 2, 2, 2, 2, 1), 1)], ids=str
)
def test_error_feedback(optimizer, schedule, accumulation):
    """The last steps, and one more copy of a tensor in a step."""
    how = {"schedule": schedule, "accumulation": accumulation, "optimizer": optimizer}
    predicted, measured = predicted_and_measured(REVNET, IMAGE, correction="error-feedback", **how)
    assert max(abs(stage.total / found - 1) for stage, found in zip(predicted, measured, strict=True)) < PREDICTED


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "nadam", "beta1_by_stage": True},
        {"optimizer": "sgd", "correction": "spike", "correct_discrepancy": True},
    ],
    ids=str,
)
def test_corrections_at_a_delay_of_three(options):
    predicted, measured = predicted_and_measured(REVNET, IMAGE, schedule=(4, 3, 3, 2, 2, 1), accumulation=1, **options)
    assert max(abs(stage.total / found - 1) for stage, found in zip(predicted, measured, strict=True)) < PREDICTED


PERCEPTRON = (
    node("stem", "linear-stem", features=96),
    *(node(f"rev{index}", "rev-mlp", hidden=64) for index in range(4)),
    node("head", "pool-linear", outputs=CLASSES),
)


def test_a_step_of_a_late_optimizer_is_the_peak():
    """Steps without delay, of the head's stage and of all while the pipeline fills, were taken for late ones: 19 percent off."""
    options = {"optimizer": "adamw", "correction": "error-feedback", "correct_discrepancy": True}
    how = {"schedule": "1f1b", "accumulation": 5, **options}
    assert deviation(PERCEPTRON, (1, 8, 8), **how) < PREDICTED
