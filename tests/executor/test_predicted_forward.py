"""A predicted forward against plain floats, and what stays as it is around it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from petra_graph.blocks import Buffered, Head
from petra_graph.errors import PluginError
from petra_graph.executor.stage_observer import StageObserver
from petra_graph.kinds.block import BLOCK
from petra_graph.registry.local_plugins import resolve_local
from tests.support.pipelines import BLOCKS, REVNET, SHAPES, batches, node, pipeline

EXACT = 1e-12
SCALES = (node("first", "scale"), node("second", "scale"), node("head", "scale-head"))
WEIGHTS = (0.9, -1.1, 1.3)
RATE = 0.02


class Scale(Buffered):
    """One number times a parameter."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, stream):
        return (self.weight * stream,)


class ScaleHead(Head, Scale):
    """The same as a head."""


class Quadratic:
    """Half the squared distance to the target."""

    def __call__(self, output, target):
        return 0.5 * (output.squeeze() - target).square().sum()

    def metrics(self, output, target):
        return {}


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


def momentum_sgd(m=0.9, nesterov=False):
    def ahead(w, state, delay):
        (v,) = state
        for _ in range(delay):
            v = m * v
            w -= RATE * (m * v if nesterov else v)
        return w

    def step(w, state, g):
        v = m * state[0] + g
        return w - RATE * (g + m * v if nesterov else v), (v,)

    return (0.0,), ahead, step


def plain_adam(beta1=0.9, beta2=0.999, eps=1e-8):
    def ahead(w, state, delay):
        t, mean, square = state
        below = (square / (1 - beta2**t)) ** 0.5 + eps if t else 1.0
        for i in range(1, delay + 1):
            w -= RATE * beta1**i * mean / (1 - beta1 ** (t + i)) / below
        return w

    def step(w, state, g):
        t, mean, square = state[0] + 1, beta1 * state[1] + (1 - beta1) * g, beta2 * state[2] + (1 - beta2) * g * g
        moved = mean / (1 - beta1**t) / ((square / (1 - beta2**t)) ** 0.5 + eps)
        return w - RATE * moved, (t, mean, square)

    return (0, 0.0, 0.0), ahead, step


def by_hand(depths, k, data, rule):
    """The weights of each stage after each of its updates, in floats."""
    start, ahead, step = rule
    held = [[(weight, start)] for weight in WEIGHTS]
    sums = [0.0] * len(WEIGHTS)
    for m, (x, target) in enumerate(data):
        streams = [x.item()]
        for versions, depth in zip(held, depths, strict=True):
            before = max(m - depth + 1, 0) // k
            streams.append(streams[-1] * ahead(*versions[before], m // k - before))
        gradient = streams[-1] - target.item()
        for j in reversed(range(len(WEIGHTS))):
            weight, state = held[j][-1]
            # The head is differentiated at its forward, the others at the parameters of their backward.
            sums[j] += gradient * streams[j]
            gradient *= weight
            if (m + 1) % k == 0:
                held[j].append(step(weight, state, sums[j] / k))
                sums[j] = 0.0
    return [versions[-1][0] for versions in held]


RULES = {
    "momentum": ({"optimizer": "sgd", "nesterov": False}, momentum_sgd()),
    "nesterov": ({"optimizer": "sgd", "nesterov": True}, momentum_sgd(nesterov=True)),
    "adam": ({"optimizer": "adam"}, plain_adam()),
}


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("depths", [(3, 2, 1), (5, 3, 1), (7, 1, 1)], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_the_weights_are_those_of_plain_floats(rule, depths, k):
    options, formula = RULES[rule]
    data = samples(12 * k)
    built = scales(depths, accumulation=k, predict=True, **options)
    built.train(data)
    found = [executor.updater.parameters[0].item() for executor in built.executors]
    assert found == pytest.approx(by_hand(depths, k, data, formula), rel=EXACT)
    unpredicted = scales(depths, accumulation=k, **options)
    unpredicted.train(data)
    assert unpredicted.executors[0].updater.parameters[0].item() != pytest.approx(found[0], rel=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize(
    "how", [{"method": "backprop"}, {"method": "gpipe", "accumulation": 2}, {"schedule": "sequential"}], ids=str
)
def test_without_delay_the_bits_are_those_of_the_optimizer_without_prediction(how, optimizer):
    data = batches(SHAPES["revnet"], 6)
    found = []
    for predict in (False, True):
        built = pipeline(REVNET, SHAPES["revnet"], optimizer=optimizer, predict=predict, **how)
        built.train(data)
        found.append(built.parameters())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


class Watches(StageObserver):
    """Notes the weight at the operations of a stage; its updates, and what it asked of its optimizer."""

    def __init__(self, executor):
        self.executor, (self.parameter,) = executor, executor.updater.parameters
        self.asked: dict[int, Counter[int]] = {}
        self.forwards, self.backwards = [], []
        predict = executor.updater.optimizer.predicted_weights

        def counted(delay):
            self.asked.setdefault(executor.updater.updates, Counter())[delay] += 1
            return predict(delay)

        executor.updater.optimizer.predicted_weights = counted

    def segment_forward(self, micro_batch, segment, inputs):
        self.forwards.append(self.parameter.item())

    def segment_backward(self, micro_batch, segment):
        self.backwards.append(self.parameter.item())


def watched(built, index=0):
    watches = Watches(built.executors[index])
    watches.executor.observe(watches)
    return watches


@pytest.mark.parametrize(("k", "depths"), [(1, (3, 2, 1)), (2, (4, 2, 1)), (3, (5, 3, 1))])
def test_each_delay_is_predicted_once_between_two_updates(k, depths):
    built = scales(depths, accumulation=k, predict=True)
    watches, facts = watched(built), built.executors[0].updater.stage
    built.train(samples(8 * k))
    full = {update: asked for update, asked in watches.asked.items() if update}
    assert len(full) > 3
    for asked in full.values():
        assert set(asked) <= {int(facts.steady), -int(-facts.steady // 1)}
        assert set(asked.values()) == {1}
    assert set(watches.asked[0].values()) == {1}


def test_the_backward_and_what_comes_after_a_forward_have_the_true_weights():
    built = scales((3, 2, 1), predict=True)
    watches = watched(built)
    memory = watches.parameter.data_ptr()
    built.train(samples(6))
    assert watches.parameter.data_ptr() == memory
    assert watches.backwards != watches.forwards
    assert watches.backwards[2] != watches.forwards[4]  # both between the second update and the third
    assert len(set(watches.forwards[:3])) == 1  # no momentum yet


def test_a_forward_that_fails_leaves_the_true_weights():
    built = scales((3, 2, 1), predict=True)
    built.train(samples(6))
    executor = built.executors[0]
    (parameter,), memory = executor.updater.parameters, executor.updater.parameters[0].data_ptr()
    with executor.predicted.of(8):
        assert parameter.data_ptr() != memory
    with pytest.raises(ZeroDivisionError), executor.predicted.of(8):
        raise ZeroDivisionError
    assert parameter.data_ptr() == memory


def test_evaluations_have_the_true_weights():
    data = samples(6)
    built, other = scales((3, 2, 1), predict=True), scales((3, 2, 1))
    built.train(data)
    for one, two in zip(built.executors, other.executors, strict=True):
        two.updater.parameters[0].data.copy_(one.updater.parameters[0].data)
    for executors in (built.executors, other.executors):
        executors[0].set_training(mode=False)
    (edge,), x = built.programs[0].receives, data[0][0]
    found = [one.executors[0].evaluate({edge: (x,)}, None).sent for one in (built, other)]
    assert [[part.item() for part in sent] for one in found for sent in one.values()]
    assert str(found[0]) == str(found[1])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda _: None, "its predicted_weights returns None, not a list of (parameter, tensor)"),
        (lambda w: [w], "not a list of (parameter, tensor)"),
        (lambda w: [(w, 1.0)], "its predicted_weights returns a float for a parameter, not a tensor"),
        (lambda w: [(w, w.new_zeros(2))], "returns [2] in float64 on cpu for a parameter [1] in float64 on cpu"),
        (lambda w: [(w, w.float())], "returns [1] in float32 on cpu for a parameter [1] in float64 on cpu"),
        (
            lambda w: [(nn.Parameter(w), w + 1)],
            "its predicted_weights returns values of what is not a parameter of its stage",
        ),
        (lambda w: [(w, w + 1), (w, w + 1)], "its predicted_weights returns a parameter twice"),
        (lambda w: [(w, w.detach())], "its predicted_weights returns a tensor in the memory of a parameter"),
        (lambda w: {}[0], "failed to predict 1 updates ahead: KeyError: 0"),
    ],
)
def test_a_wrong_prediction_ends_the_run_under_its_optimizer_s_name(answer, said):
    built = scales((3, 2, 1), predict=True)
    updater = built.executors[0].updater
    updater.optimizer.predicted_weights = lambda _: answer(updater.parameters[0])
    with pytest.raises(PluginError) as caught:
        built.train(samples(4))
    assert said in str(caught.value)
    assert "the optimizer" in str(caught.value)


def test_a_prediction_has_the_layout_of_its_parameter():
    built = pipeline(REVNET, SHAPES["revnet"], schedule="lockstep", predict=True)
    updater = built.executors[0].updater
    predict = updater.optimizer.predicted_weights
    updater.optimizer.predicted_weights = lambda delay: [(one, value.contiguous()) for one, value in predict(delay)]
    other = pipeline(REVNET, SHAPES["revnet"], schedule="lockstep", predict=True)
    data = batches(SHAPES["revnet"], 24)
    for one in (built, other):
        one.train(data)
    found = [one.parameters() for one in (built, other)]
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    strided = [one for one in updater.parameters if not one.is_contiguous()]
    assert strided
    with built.executors[0].predicted.of(16):
        assert all(not one.is_contiguous() for one in strided)
