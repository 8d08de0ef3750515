"""The plan's memory is the run's memory, stage by stage and device by device.

The promise is 5 percent. What is left out is one scalar for each stream in flight, so it is nearer to the byte wherever a
stream is more than a few values.
"""

from typing import ClassVar

import pytest
from torch import nn

from petra_graph.blocks import AdditiveCoupling, Buffered, Head
from petra_graph.compiler.placement_search import place
from tests.support.costs import costs, predicted_and_measured
from tests.support.method_cases import CASES
from tests.support.pipelines import CHAIN, CLASSES, GRAPHS, REVNET, SHAPES, node
from tests.support.settings import setting

pytestmark = pytest.mark.slow
PROMISED = 0.05
PREDICTED = 0.01
NEAR = 0.002
IMAGE = (3, 12, 12)


class Twice(Buffered):
    """One tensor as both streams, as embeddings give it."""

    def forward(self, stream):
        doubled = 2.0 * stream
        return doubled, doubled


class HalfFrozen(AdditiveCoupling):
    """A layer that is trained, and one that is not."""

    def __init__(self, inputs):
        super().__init__(inputs)
        (width,) = inputs[0]
        self.own, self.frozen = nn.Linear(width, width), nn.Linear(width, width).requires_grad_(False)

    def residual(self, x):
        return self.own(self.frozen(x)).tanh()


class Tied:
    """A linear layer whose weight stem and head share, behind layers of the head's own."""

    shared_parameters: ClassVar = {"tied.weight": "embedding"}

    def __init__(self, inputs) -> None:
        super().__init__(inputs)
        (width,) = inputs[0]
        self.own = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 40)) if width == 24 else nn.Identity()
        self.tied = nn.Linear(40, 24, bias=False)

    def forward(self, x):
        return self.tied(self.own(x))


class TiedStem(Tied, Buffered): ...


class TiedHead(Tied, Head): ...


class Own(Buffered):
    def __init__(self, inputs) -> None:
        super().__init__(inputs)
        self.own = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24))

    def forward(self, x):
        return x + self.own(x)


def deviation(*arguments, **settings) -> float:
    predicted, measured = predicted_and_measured(*arguments, **settings)
    return max(abs(stage.total / found - 1) for stage, found in zip(predicted, measured, strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_method(case):
    if case.graph == "revnet":
        assert deviation(REVNET, IMAGE, **case.settings) < NEAR
    else:  # Streams are of six values here, so that the scalars count.
        assert deviation(GRAPHS[case.graph], SHAPES[case.graph], batch=16, **case.settings) < PROMISED


HEAD = node("head", "pool-linear", outputs=CLASSES)
DEEP = (node("stem", "conv-stem", channels=4), *(node(f"rev{index}", "rev-basic") for index in range(12)), HEAD)
BY_FOURS = (
    ("stem",),
    *(tuple(f"rev{index}" for index in range(first, first + 4)) for first in range(0, 12, 4)),
    ("head",),
)
RESNET = (
    node("stem", "conv-stem", channels=8, streams=1),
    *(node(f"res{index}", "res-basic", channels=8) for index in range(4)),
    HEAD,
)
TWO_EQUAL_STREAMS = (
    node("stem", "conv-stem", channels=8, streams=1),
    node("twice", f"{__name__}:Twice"),
    *(node(f"rev{index}", "rev-basic") for index in range(2)),
    HEAD,
)
HALVES = (
    node("stem", "linear-stem", features=40),
    *(node(f"rev{index}", f"{__name__}:HalfFrozen") for index in range(2)),
    HEAD,
)
PERCEPTRON = (
    node("stem", "linear-stem", features=96),
    *(node(f"rev{index}", "rev-mlp", hidden=64) for index in range(4)),
    HEAD,
)
PREDICT, DISCREPANCY = {"predict": True}, {"correct_discrepancy": True}
FEEDBACK = {"correction": "error-feedback"}
OTHERS = {
    # In five stages, since a tracked run of 14 takes long; tools/bench/memory.py has one a block.
    "a deep narrow network": (DEEP, {"schedule": "lockstep", "stages": BY_FOURS, "batch": 8}),
    "several nodes in a segment": (
        RESNET,
        {"method": "pipedream", "stages": (("stem", "res0", "res1"), ("res2", "res3"), ("head",))},
    ),
    "one tensor as two streams": (TWO_EQUAL_STREAMS, {"schedule": "lockstep"}),
    "frozen parameters": (HALVES, {"schedule": "1f1b", "optimizer": "adam", "batch": 32}),
    "bfloat16": (REVNET, {"compute": "bfloat16"}),
    "predicted by adam": (REVNET, {"schedule": "1f1b", "accumulation": 3, "optimizer": "adam", **PREDICT}),
    "discrepancy and spike": (
        REVNET,
        {"schedule": "lockstep", "optimizer": "adamw", "correction": "spike", **DISCREPANCY},
    ),
    # The last steps, and one more copy of a tensor in a step.
    "error feedback of adam": (REVNET, {"schedule": (2, 2, 2, 2, 2, 1), "optimizer": "adam", **FEEDBACK}),
    # Steps without delay, of the head's stage and of all while the pipeline fills, were taken for late ones: 19 percent off.
    "the peak is a late step": (
        PERCEPTRON,
        {"schedule": "1f1b", "accumulation": 5, "optimizer": "adamw", **FEEDBACK, **DISCREPANCY},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_networks_and_optimizers(name):
    nodes, settings = OTHERS[name]
    late = any(key in settings for key in ("predict", "correct_discrepancy", "correction"))
    shape = (1, 8, 8) if nodes in (HALVES, PERCEPTRON) else IMAGE
    assert deviation(nodes, shape, **settings) < (PREDICTED if late else NEAR)


TIED = [("backprop", (("stem", "own", "head"),)), ("gpipe", (("stem", "own"), ("head",)))]


@pytest.mark.parametrize(("method", "stages"), TIED)
def test_what_nodes_of_a_stage_share_is_counted_once(method, stages):
    """Parameter, gradient and optimizer state were counted for each node; a gradient exists from the head's backward on."""
    optimizer, batch = ("adam", 64) if method == "backprop" else ("sgd", 2)
    nodes = (node("stem", f"{__name__}:TiedStem"), node("own", f"{__name__}:Own"), node("head", f"{__name__}:TiedHead"))
    settings = {"method": method, "optimizer": optimizer, "batch": batch, "accumulation": 2, "stages": stages}
    predicted, measured = predicted_and_measured(nodes, (40,), untie=True, **settings)
    assert [stage.total for stage in predicted] == pytest.approx(measured, rel=PREDICTED)
    values = 2 * 600 + 48 + 25 * 40 + len(stages) * 24 * 40
    assert sum(stage.parameters for stage in predicted) == 4 * values


SHARED = [
    ("a", "arrival", {"method": "backprop", "schedule": "sequential"}),
    ("ab", "arrival", {"method": "pipedream", "schedule": "lockstep"}),
    ("ab", "static", {"method": "1f1b-flush", "schedule": "1f1b"}),
    ("abc", "static", {"method": "petra", "schedule": "1f1b"}),
    ("ab", "arrival", {"schedule": "1f1b", **DISCREPANCY}),
]


@pytest.mark.parametrize(("devices", "policy", "how"), SHARED)
def test_on_shared_devices(devices, policy, how):
    """A shared device was predicted as the sum of its stages' peaks: on one device, more than twice what it held."""
    promised = PREDICTED if "correct_discrepancy" in how else NEAR
    assert deviation(REVNET, IMAGE, devices=tuple(devices), policy=policy, accumulation=2, **how) < promised


def test_what_nodes_keep_under_five_limits():
    """What the planner chooses at each is another mixture; samples are so many that a scalar of each stream does not count."""
    how = {"method": "petra", "schedule": "1f1b", "accumulation": 2}
    asked = {**how, "table": costs(CHAIN, (8,), batch=256), "allow_stored": True}
    free = setting(2, **asked)
    least, most = (max(free.held_bytes(place(free, 2, keep))) for keep in ("least", "fill"))
    mixtures = set()
    for limit in (least + step * (most - least) // 4 for step in range(5)):
        placement = place(setting(2, **asked, memory=limit), 2, "fill")
        mixtures.add(tuple(placement.kept.items()))
        stages = tuple(stage.nodes for stage in placement.stages)
        settings = {"keep": placement.kept, "allow_stored": True}
        predicted, measured = predicted_and_measured(CHAIN, (8,), batch=256, **how, stages=stages, settings=settings)
        for stage, found in zip(predicted, measured, strict=True):
            assert stage.total == pytest.approx(found, rel=PREDICTED)
            assert found <= 1.01 * limit
    assert len(mixtures) > 2
