"""Every correction of delays in the real executor against plain floats.

Three stages of a weight, which decays, and a bias, which does not; two epochs, so that the pipeline fills and drains twice and each
epoch ends with a short window; a rate that changes at every update, with the rate by delay, and clipped gradients.
"""

import copy
import random
from math import ceil, exp, hypot, sin, sqrt
from pathlib import Path

import attrs
import pytest
import torch
from torch import nn

from petra_graph.blocks import Buffered, Head
from petra_graph.executor.update import learning_rate
from petra_graph.plugins.contract import BLOCK
from petra_graph.plugins.registry import Registry
from petra_graph.plugins.stage_facts import Horizon
from petra_graph.spec.model import ClipSpec, LrScheduleSpec
from tests.support.pipelines import BLOCKS, node, pipeline

EXACT = 1e-12
MICRO_BATCHES, EPOCHS, STAGES = 11, 2, 3
START = ((0.9, 0.1), (-1.1, -0.2), (1.3, 0.05))
RATE, DECAY, LIMIT, EPS = 0.01, 0.1, 0.2, 1e-8
M, BETA2 = 0.9, 0.999
"""M: momentum, and the first beta."""


class Affine(Buffered):
    """A number times a parameter, plus another one."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.weight, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, stream):
        return (self.weight * stream + self.bias,)


class AffineHead(Head, Affine):
    """The same as a head."""


class Quadratic:
    """Half the squared distance to the target."""

    def __call__(self, output, target):
        return 0.5 * (output.squeeze() - target).square().sum()

    def metrics(self, output, target):
        return {}


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    registry = Registry(entries=(), folders=(str(Path(__file__).parent),))
    for name, kind in (("affine", "Affine"), ("affine-head", "AffineHead")):
        monkeypatch.setitem(BLOCKS, name, registry.resolve(BLOCK, f"{Path(__file__).stem}:{kind}"))


@pytest.fixture(autouse=True)
def double():
    """The scalars are of the type of Python's floats."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@attrs.frozen
class Case:
    """A training."""

    rule: str
    depths: tuple[int, ...]
    k: int
    clip: bool
    delay_epochs: float


# --- by hand ----------------------------------------------------------------------------------------------------------


class Rule:
    """An optimizer of one scalar."""

    def __init__(self, name, options, decay):
        self.name, self.options, self.decay = name, options, decay
        self.t, self.v, self.square = 0, 0.0, 0.0
        self.rate, self.late, self.last, self.delta = 0.0, 0.0, None, 0.0

    def spike(self):
        return self.late if self.options.get("correction") == "spike" else 0

    def base(self, w, g):
        self.t += 1
        if self.name == "sgd":
            g += self.decay * w
            self.v = M * self.v + g
            a = M ** (self.spike() + self.options["nesterov"])
            return w - self.rate * (a * self.v + (1 - a) / (1 - M) * g)
        shrunk = w - (self.rate * self.decay * w if self.name == "adamw" else 0)
        g += self.decay * w if self.name == "adam" else 0
        self.v, self.square = M * self.v + (1 - M) * g, BETA2 * self.square + (1 - BETA2) * g * g
        below = sqrt(self.square / (1 - BETA2**self.t)) + EPS
        a = M ** self.spike()
        mean = a * self.v / (1 - M**self.t) + (1 - a) * g
        return shrunk - self.rate * mean / below

    def step(self, w, g, rate, late):
        self.rate, self.late = rate, late
        new = self.base(w, g)
        if self.options.get("correction") == "error-feedback":
            u = new - w
            new, self.last = new + late * (u - (u if self.last is None else self.last)), u
        kept = exp(-2 / late) if late else 0.0
        self.delta = kept * self.delta + (1 - kept) * (new - w)
        return new

    def of_forward(self, w, delay):
        """SGD's steps without a gradient; Adam's keep the mean square, and the decay that is part of the gradient."""
        if "predict" not in self.options or not self.t:
            return w
        if self.name == "sgd":
            ahead = copy.copy(self)
            for _ in range(delay):
                w = ahead.base(w, 0.0)
            return w
        below, a = sqrt(self.square / (1 - BETA2**self.t)) + EPS, M ** self.spike()
        g, v = self.decay * w if self.name == "adam" else 0.0, self.v
        for t in range(self.t + 1, self.t + delay + 1):
            w -= self.rate * self.decay * w if self.name == "adamw" else 0
            v = M * v + (1 - M) * g
            w -= self.rate * (a * v / (1 - M**t) + (1 - a) * g) / below
        return w

    def of_backward(self, w, delay):
        return w - delay * self.delta if "correct_discrepancy" in self.options else w


def by_hand(case, data):
    """The weight and the bias of each stage after training."""
    (name, options), depths, k = RULES[case.rule], case.depths, case.k
    annealed = round(case.delay_epochs * ceil(MICRO_BATCHES / k))
    versions = [
        [[(value, Rule(name, options, decay)) for value, decay in zip(start, (DECAY, 0.0), strict=True)]]
        for start, depth in zip(START, depths, strict=True)
    ]
    for epoch in range(EPOCHS):
        first = len(versions[0]) - 1
        sums, late = [[0.0, 0.0] for _ in depths], [[] for _ in depths]
        for n, (x, target) in enumerate(data[epoch * MICRO_BATCHES : (epoch + 1) * MICRO_BATCHES]):
            streams = [x]
            for held, depth, delays in zip(versions, depths, late, strict=True):
                at_forward = max(n - depth + 1, 0) // k
                delays.append(n // k - at_forward)
                weight, bias = (rule.of_forward(w, delays[-1]) for w, rule in held[first + at_forward])
                streams.append(weight * streams[-1] + bias)
            gradient = streams[-1] - target
            for j in reversed(range(STAGES)):
                sums[j] = [sums[j][0] + gradient * streams[j], sums[j][1] + gradient]
                weight, rule = versions[j][-1][0]
                gradient *= rule.of_backward(weight, late[j][-1])
            if (n + 1) % k and n + 1 < MICRO_BATCHES:
                continue
            for j, held in enumerate(versions):
                u, mean_late = len(held) - 1, sum(late[j]) / len(late[j])
                rate = rate_of(u) / max(1, mean_late) ** (1 - min(u / annealed, 1) if annealed else 0)
                means = [one / len(late[j]) for one in sums[j]]
                scale = min(1, LIMIT / hypot(*means)) if case.clip else 1
                new = copy.deepcopy(held[-1])
                held.append(
                    [(rule.step(w, scale * g, rate, mean_late), rule) for (w, rule), g in zip(new, means, strict=True)]
                )
                sums[j], late[j] = [0.0, 0.0], []
    return [w for held in versions for w, _ in held[-1]]


def rate_of(u):
    return RATE * (1.2 + sin(u))


# --- by the executor --------------------------------------------------------------------------------------------------


def executed(case, data):
    """As `by_hand`, by the executor."""
    name, options = RULES[case.rule]
    limit = ClipSpec(limit=LIMIT) if case.clip else None
    nodes = (node("first", "affine"), node("second", "affine"), node("head", "affine-head"))
    how = {"schedule": case.depths, "accumulation": case.k, "batch": 1, "micro_batches": MICRO_BATCHES, "clip": limit}
    built = pipeline(nodes, (1,), optimizer=name, lr=RATE, weight_decay=DECAY, **how, **options)
    spec = attrs.evolve(built.network.spec, lr_schedule=LrScheduleSpec(delay_epochs=case.delay_epochs))
    horizon = Horizon(updates=100, updates_per_epoch=ceil(MICRO_BATCHES / case.k), warmup_updates=0)
    for executor, program, (weight, bias) in zip(built.executors, built.programs, START, strict=True):
        facts = program.facts(stages=STAGES, replicas=1, micro_batches=MICRO_BATCHES)
        executor.updater.rate = learning_rate(spec, 1.0, rate_of, horizon, facts)
        (module,) = executor.modules.values()
        module.weight.data.fill_(weight)
        module.bias.data.fill_(bias)
    built.executors[-1].runners[-1][1].loss = Quadratic()
    samples = [(torch.tensor([[x]]), torch.tensor([target])) for x, target in data]
    for start in range(0, len(samples), MICRO_BATCHES):
        built.train(samples[start : start + MICRO_BATCHES], start)
    return [one.item() for executor in built.executors for one in executor.updater.parameters]


SPIKE, FEEDBACK = {"correction": "spike"}, {"correction": "error-feedback"}
PREDICT, EARLIER = {"predict": True}, {"correct_discrepancy": True}
CORRECTIONS = {
    "none": {},
    "spike": SPIKE,
    "prediction": PREDICT,
    "prediction and spike": PREDICT | SPIKE,
    "feedback": FEEDBACK,
    "discrepancy": EARLIER,
    "discrepancy and spike": EARLIER | SPIKE,
    "discrepancy and feedback": EARLIER | FEEDBACK,
}
BASES = {
    "momentum": ("sgd", {"nesterov": False}),
    "nesterov": ("sgd", {"nesterov": True}),
    "adam": ("adam", {}),
    "adamw": ("adamw", {}),
}
RULES = {
    f"{base}, {correction}": (name, options | corrects)
    for base, (name, options) in BASES.items()
    for correction, corrects in CORRECTIONS.items()
}


ROWS = [
    *((rule, (3, 2, 1), 1, False, 0) for rule in RULES),
    ("momentum, spike", (5, 3, 1), 2, True, 1.5),
    ("momentum, prediction", (2, 2, 1), 3, False, 0),
    ("nesterov, prediction and spike", (5, 3, 1), 3, True, 0),
    ("adam, feedback", (2, 2, 1), 2, False, 1.5),
    ("adamw, discrepancy and feedback", (5, 3, 1), 2, True, 1.5),
]


@pytest.mark.parametrize(("rule", "depths", "k", "clip", "delay_epochs"), ROWS)
def test_the_weights_are_those_of_plain_floats(rule, depths, k, clip, delay_epochs):
    case, numbers = Case(rule, depths, k, clip, delay_epochs), random.Random(0)
    data = [(0.5 + numbers.random(), numbers.randrange(3)) for _ in range(EPOCHS * MICRO_BATCHES)]
    assert executed(case, data) == pytest.approx(by_hand(case, data), rel=EXACT)
