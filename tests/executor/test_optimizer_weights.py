"""Predicted forwards and corrected backwards against plain floats, and what stays as it is around them."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from math import exp

import pytest
import torch
from torch import nn

from petra_graph.blocks import Buffered, Head
from petra_graph.errors import PluginError
from petra_graph.executor.stage_observer import StageObserver
from petra_graph.kinds.block import BLOCK
from petra_graph.registry.local_plugins import resolve_local
from tests.support.pairwise import pairs_of
from tests.support.pipelines import BLOCKS, GRAPHS, REVNET, SHAPES, Quadratic, batches, node, pipeline, relative_error

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


# A rule: the state at the start; the weight `delay` steps ahead, of (weight, state, delay); a step, of (weight, state, gradient).


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


def stay(w, state, delay):
    return w


def fed_back(rule):
    """The rule with error feedback: w + u + D (u - the last u)."""
    start, _, base = rule

    def step(w, state, g, late):
        moved, inner = base(w, state[0], g)
        u = moved - w
        return w + u + late * (u - (u if state[1] is None else state[1])), (inner, u)

    return (start, None), stay, step


def late(m, depth, k):
    """How many updates a stage makes between its forward and its backward of a micro-batch."""
    return m // k - max(m - depth + 1, 0) // k


def mean_late(m, depth, k):
    """Of the window that ends with a micro-batch."""
    return sum(late(one, depth, k) for one in range(m - k + 1, m + 1)) / k


def by_hand(depths, k, data, rule, how="predict"):
    """The weights of each stage after each of its updates, in floats."""
    start, ahead, step = rule
    held = [[(weight, start)] for weight in WEIGHTS]
    sums, deltas = [0.0] * len(WEIGHTS), [0.0] * len(WEIGHTS)
    for m, (x, target) in enumerate(data):
        streams = [x.item()]
        for versions, depth in zip(held, depths, strict=True):
            version = versions[max(m - depth + 1, 0) // k]
            at = ahead(*version, late(m, depth, k)) if how == "predict" else version[0]
            streams.append(streams[-1] * at)
        gradient = streams[-1] - target.item()
        for j in reversed(range(len(WEIGHTS))):
            weight, state = held[j][-1]
            # The head is differentiated at its forward, the others at the parameters of their backward.
            sums[j] += gradient * streams[j]
            gradient *= weight - late(m, depths[j], k) * deltas[j]
            if (m + 1) % k == 0:
                d = mean_late(m, depths[j], k)
                new = step(weight, state, sums[j] / k, *([d] if how == "feedback" else []))
                held[j].append(new)
                if how == "discrepancy":
                    g = exp(-2 / d) if d else 0.0
                    deltas[j] = g * deltas[j] + (1 - g) * (new[0] - weight)
                sums[j] = 0.0
    return [versions[-1][0] for versions in held]


RULES = {
    "momentum": ({"optimizer": "sgd", "nesterov": False}, momentum_sgd()),
    "nesterov": ({"optimizer": "sgd", "nesterov": True}, momentum_sgd(nesterov=True)),
    "adam": ({"optimizer": "adam"}, plain_adam()),
}


def expect_by_hand(depths, k, rule, options, how, **correction):
    data = samples(12 * k)
    built = scales(depths, accumulation=k, **options, **correction)
    built.train(data)
    found = [executor.updater.parameters[0].item() for executor in built.executors]
    assert found == pytest.approx(by_hand(depths, k, data, rule, how), rel=EXACT)
    uncorrected = scales(depths, accumulation=k, **options)
    uncorrected.train(data)
    assert uncorrected.executors[0].updater.parameters[0].item() != pytest.approx(found[0], rel=1e-6)


@pytest.mark.parametrize(("rule", "depths", "k"), pairs_of(RULES, [(3, 2, 1), (5, 3, 1), (7, 1, 1)], [1, 2, 3]))
def test_with_prediction_the_weights_are_those_of_plain_floats(rule, depths, k):
    options, formula = RULES[rule]
    expect_by_hand(depths, k, formula, options, "predict", predict=True)


@pytest.mark.parametrize(
    ("rule", "depths", "k"), pairs_of(RULES, [(2, 2, 1), (3, 2, 1), (5, 3, 1), (6, 6, 1)], [1, 2, 3])
)
def test_with_discrepancy_correction_they_are_those_of_plain_floats(rule, depths, k):
    """The second stage hands on its gradient, and the last one has no delay, so its correction shows in the first."""
    options, formula = RULES[rule]
    expect_by_hand(depths, k, formula, options, "discrepancy", correct_discrepancy=True)


@pytest.mark.parametrize(("depths", "k"), [((2, 2, 1), 1), ((2, 2, 1), 2), ((3, 2, 1), 2), ((4, 2, 1), 3)], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_with_error_feedback_they_are_those_of_plain_floats(rule, depths, k):
    options, formula = RULES[rule]
    expect_by_hand(depths, k, fed_back(formula), options, "feedback", correction="error-feedback")


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
    ("undelayed", "optimizer", "correction"), pairs_of(UNDELAYED, ["sgd", "adam", "adamw"], CORRECTIONS)
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
    data = batches(SHAPES[graph], 24)
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


def test_a_backward_without_delay_frees_the_estimate_of_the_one_before_it():
    """At depth 2 and three micro-batches in a window, only the first of a window is late."""
    built = scales((2, 1, 1), accumulation=3, correct_discrepancy=True)
    built.train(samples(9))
    earlier = built.executors[0].earlier
    for micro_batch, held in ((9, 1), (10, 0), (11, 0)):
        with earlier.of(micro_batch):
            assert len(earlier._weights) == held


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
def test_evaluations_have_the_true_weights(method):
    data = samples(6)
    built, other = scales((3, 2, 1), **METHODS[method]), scales((3, 2, 1))
    built.train(data)
    for one, two in zip(built.executors, other.executors, strict=True):
        two.updater.parameters[0].data.copy_(one.updater.parameters[0].data)
    for executors in (built.executors, other.executors):
        executors[0].set_training(mode=False)
    (edge,), x = built.programs[0].receives, data[0][0]
    found = [one.executors[0].evaluate({edge: (x,)}, None).sent for one in (built, other)]
    assert [[part.item() for part in sent] for one in found for sent in one.values()]
    assert str(found[0]) == str(found[1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda _: None, "its METHOD returns None, not a list of (parameter, tensor)"),
        (lambda w: [w], "not a list of (parameter, tensor)"),
        (lambda w: [(w, 1.0)], "its METHOD returns a float for a parameter, not a tensor"),
        (lambda w: [(w, w.new_zeros(2))], "returns [2] in float64 on cpu for a parameter [1] in float64 on cpu"),
        (lambda w: [(w, w.float())], "returns [1] in float32 on cpu for a parameter [1] in float64 on cpu"),
        (
            lambda w: [(nn.Parameter(w), w + 1)],
            "its METHOD returns values of what is not a parameter of its stage",
        ),
        (lambda w: [(w, w + 1), (w, w + 1)], "its METHOD returns a parameter twice"),
        (lambda w: [(w, w.detach())], "its METHOD returns a tensor in the memory of a parameter"),
        (lambda w: {}[0], "failed at METHOD(1): KeyError: 0"),
    ],
)
def test_a_wrong_answer_ends_the_run_under_its_optimizer_s_name(answer, said, method):
    built = scales((3, 2, 1), **METHODS[method])
    updater = built.executors[0].updater
    setattr(updater.optimizer, method, lambda _: answer(updater.parameters[0]))
    with pytest.raises(PluginError) as caught:
        built.train(samples(4))
    assert said.replace("METHOD", method) in str(caught.value)
    assert "stage 1 (first), the optimizer" in str(caught.value)


@pytest.mark.parametrize("method", METHODS)
def test_the_values_have_the_layout_of_their_parameter(method):
    built = pipeline(REVNET, SHAPES["revnet"], schedule="lockstep", **METHODS[method])
    updater = built.executors[0].updater
    ask = getattr(updater.optimizer, method)
    setattr(updater.optimizer, method, lambda delay: [(one, value.contiguous()) for one, value in ask(delay)])
    other = pipeline(REVNET, SHAPES["revnet"], schedule="lockstep", **METHODS[method])
    data = batches(SHAPES["revnet"], 24)
    for one in (built, other):
        one.train(data)
    found = [one.parameters() for one in (built, other)]
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    strided = [one for one in updater.parameters if not one.is_contiguous()]
    assert strided
    executor = built.executors[0]
    with (executor.predicted if method == "predicted_weights" else executor.earlier).of(16):
        assert all(not one.is_contiguous() for one in strided)
