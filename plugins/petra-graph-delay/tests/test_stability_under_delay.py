"""A stage that is trained by late gradients of a quadratic is stable up to the rate that the roots say, and not above it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from petra_graph.blocks import Buffered, Head
from petra_graph.executor.stage_observer import StageObserver
from petra_graph.kinds.block import BLOCK
from petra_graph.registry.local_plugins import resolve_local
from tests.support.pairwise import thinned
from tests.support.pipelines import BLOCKS, node, pipeline
from tools.studies.stability import FEEDBACK, METHODS, largest_stable_rate

STEPS = 240


class Weight(Buffered):
    """A parameter, times ones."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, ones):
        return (self.weight * ones,)


class Unchanged(Head):
    """Its output is its input."""

    def forward(self, stream):
        return (stream,)


class Quadratic:
    """Half the square."""

    def __call__(self, output, target):
        return 0.5 * output.square().sum()

    def metrics(self, output, target):
        return {}


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    for name, kind in (("weight", "Weight"), ("unchanged", "Unchanged")):
        monkeypatch.setitem(BLOCKS, name, resolve_local(BLOCK, f"{Path(__file__).stem}:{kind}", ()))


class Seen(StageObserver):
    """Notes the weight after each update."""

    def __init__(self, weight):
        self.weight, self.weights = weight, []

    @contextmanager
    def update(self):
        yield
        self.weights.append(self.weight.item())


def growth(descent, delay, rate):
    """The largest weight of the last quarter of the steps as a share of the second's, of gradients that are `delay` updates late."""
    options = {"momentum": descent.momentum, "nesterov": descent.nesterov, "predict": descent.predict}
    built = pipeline(
        (node("weight", "weight"), node("head", "unchanged")),
        (1,),
        schedule=(delay + 1, 1),
        batch=1,
        rate=lambda _: rate,
        lr=rate,
        correction="spike" if descent.spike else "error-feedback" if descent.feedback else "none",
        **options,
    )
    built.executors[-1].runners[-1][1].loss = Quadratic()
    (weight,) = built.executors[0].updater.parameters
    seen = Seen(weight)
    built.executors[0].observe(seen)
    ones = torch.ones(1, 1, dtype=torch.float64)
    built.train([(ones, torch.zeros(1))] * STEPS)
    sizes, part = [abs(weight) for weight in seen.weights], STEPS // 4
    return max(sizes[-part:]) / max(sizes[part : 2 * part])


CASES = {**{name: (descent, 3) for name, descent in METHODS.items()}, "error feedback": (FEEDBACK, 1)}


@pytest.mark.parametrize("name", thinned(sorted(CASES), sorted(CASES)[::3]))
def test_the_executor_descends_below_the_rate_and_not_above(name):
    descent, delay = CASES[name]
    rate = largest_stable_rate(descent, delay)
    assert growth(descent, delay, 0.95 * rate) < 0.95
    assert growth(descent, delay, 1.05 * rate) > 1.05
