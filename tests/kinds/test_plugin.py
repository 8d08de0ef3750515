"""What `build` returns: each kind's contract, with the plugin's name and its distribution, in one sentence."""

from __future__ import annotations

import math
from types import SimpleNamespace

import attrs
import pytest
import torch
from attrs import frozen

from petra_graph.errors import PluginError
from petra_graph.kinds.architecture import ARCHITECTURE, expand
from petra_graph.kinds.callback import CALLBACK
from petra_graph.kinds.data_set import DATA_SET
from petra_graph.kinds.declared_data import declared_facts
from petra_graph.kinds.logger import LOGGER
from petra_graph.kinds.loss import LOSS
from petra_graph.kinds.lr_schedule import LR_SCHEDULE
from petra_graph.kinds.optimizer import OPTIMIZER
from petra_graph.kinds.plugin import Plugin, build_plugin, builder
from petra_graph.kinds.stage_facts import UNDELAYED
from petra_graph.plugins import (
    Callback,
    DataFacts,
    Horizon,
    NodeSpec,
    NoOptions,
    ParameterGroups,
)

FACTS = DataFacts(shape=(2,), dtype="float32", classes=3)
HORIZON = Horizon(updates=10, updates_per_epoch=5, warmup_updates=0)


@frozen(kw_only=True)
class Rate:
    lr: float = 0.1


MORE = {
    OPTIMIZER: {"options": Rate},
    DATA_SET: {"facts": lambda _: FACTS},
}


def plugin(kind, build, **more):
    """A plugin whose `build` is this function."""
    globals()["found"] = build
    declaration = kind.declaration(summary="x", build=f"{__name__}:found", **{**MORE.get(kind, {}), **more})
    return Plugin(kind=kind, name="bad", distribution="my-plugins", declaration=declaration)


def message(call, *arguments):
    with pytest.raises(PluginError) as error:
        call(*arguments)
    [problem] = error.value.problems
    assert problem.hint == "report it to its author"
    return problem.message


def groups(*decayed, undecayed=()):
    return ParameterGroups(decayed=decayed, undecayed=list(undecayed))


def parameter():
    return torch.nn.Parameter(torch.ones(2))


# --- optimizers -------------------------------------------------------------------------------------------------------


def optimizer_message(build, given=None):
    made = plugin(OPTIMIZER, build)
    return message(build_plugin, made, given or groups(parameter(), undecayed=[parameter()]), Rate())


def every(given):
    return [*given.decayed, *given.undecayed]


@pytest.mark.parametrize(
    ("build", "fault"),
    [
        (lambda given, _: None, "its build returns None, not a torch.optim.Optimizer"),
        (lambda given, _: every(given), "its build returns a list, not a torch.optim.Optimizer"),
        (
            lambda given, _: torch.optim.LBFGS(every(given)),
            "its step() needs closure; it is called without, after the backwards of a window",
        ),
        (
            lambda given, _: torch.optim.SGD(given.decayed, lr=1.0),
            "its groups leave out 1 of the 2 parameters that it was given",
        ),
        (
            lambda given, _: torch.optim.SGD([p.detach().clone().requires_grad_() for p in every(given)], lr=1.0),
            "2 of the parameters in its groups are not the stage's, but copies or others",
        ),
    ],
)
def test_an_optimizer(build, fault):
    assert optimizer_message(build) == f'optimizer "bad" of my-plugins is broken: {fault}'


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_an_optimizer_that_has_a_parameter_twice():
    assert optimizer_message(lambda given, _: torch.optim.SGD(every(given) * 2, lr=1.0)).endswith(
        "a parameter is in its groups twice"
    )


def test_an_optimizer_need_not_have_what_is_not_trained():
    frozen_one = parameter().requires_grad_(False)
    made = plugin(OPTIMIZER, lambda given, _: torch.optim.SGD([p for p in every(given) if p.requires_grad]))
    assert isinstance(builder(made)(groups(parameter(), frozen_one), Rate(), stage=UNDELAYED), torch.optim.SGD)


def test_a_build_that_raises_is_named():
    made = plugin(OPTIMIZER, lambda given, _: given.nothing)
    with pytest.raises(PluginError, match='optimizer "bad" of my-plugins cannot be built: AttributeError: '):
        builder(made)(groups(), Rate(), stage=UNDELAYED)


# --- learning-rate schedules ------------------------------------------------------------------------------------------


def test_a_schedule_that_is_no_function():
    made = plugin(LR_SCHEDULE, lambda _, horizon: 0.5)
    assert message(build_plugin, made, NoOptions(), HORIZON) == (
        'learning-rate schedule "bad" of my-plugins is broken: its build returns a float, not a function of the update'
    )


@pytest.mark.parametrize(
    ("factor", "fault"),
    [
        (lambda u: None, "its factor at update 3 is None, not a number"),
        (lambda u: True, "its factor at update 3 is a bool, not a number"),
        (lambda u: torch.ones(()), "its factor at update 3 is a Tensor, not a number"),
        (lambda u: math.nan, "its factor at update 3 is nan, not a finite number of at least 0"),
        (lambda u: 2 - u, "its factor at update 3 is -1, not a finite number of at least 0"),
    ],
)
def test_a_factor(factor, fault):
    built = build_plugin(plugin(LR_SCHEDULE, lambda _, horizon: factor), NoOptions(), HORIZON)
    assert message(built, 3) == f'learning-rate schedule "bad" of my-plugins is broken: {fault}'


def test_a_factor_that_raises_and_one_that_does_not():
    built = build_plugin(plugin(LR_SCHEDULE, lambda _, horizon: lambda u: 1 / u), NoOptions(), HORIZON)
    with pytest.raises(PluginError, match='schedule "bad" of my-plugins failed at update 0: ZeroDivisionError'):
        built(0)
    assert built(4) == 0.25


# --- losses -----------------------------------------------------------------------------------------------------------


class Mean:
    def __call__(self, output, target):
        return output.mean()

    def metrics(self, output, target):
        return {"top1": (output > 0).sum()}


@pytest.mark.parametrize(
    ("built", "fault"),
    [
        (None, "its build returns None, not a function (output, target) -> mean loss"),
        (torch.nn.functional.mse_loss, "its build returns a function without the method `metrics`"),
    ],
)
def test_a_loss(built, fault):
    made = plugin(LOSS, lambda _: built)
    assert message(build_plugin, made, NoOptions()) == f'loss "bad" of my-plugins is broken: {fault}'


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (lambda output: output.mean(1), "it returns a tensor of shape [3], not a scalar: the mean over the samples"),
        (lambda output: 3.0, "it returns a float, not a tensor"),
        (lambda output: output.sum().long(), "it returns a scalar of torch.int64, which has no gradient"),
        (
            lambda output: output.mean().detach(),
            "it returns a scalar without a graph, so nothing can be learnt: leave out detach(), item() and argmax()",
        ),
    ],
)
def test_a_value_of_a_loss(value, fault):
    class Bad(Mean):
        def __call__(self, output, target):
            return value(output)

    loss = build_plugin(plugin(LOSS, lambda _: Bad()), NoOptions())
    output = torch.ones(3, 2, requires_grad=True)
    assert message(loss, output, None) == f'loss "bad" of my-plugins is broken: {fault}'


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (None, "its metrics are None, not a mapping from names to sums; return {} where there are none"),
        ({"top1": 3.0}, 'its metric "top1" is a float, not a scalar tensor: the sum over the samples'),
        ({"top1": torch.ones(3)}, 'its metric "top1" is of shape [3], not a scalar tensor: the sum over the samples'),
        ({"loss": torch.ones(())}, "one of its metrics is called 'loss', which is not a name of their own"),
    ],
)
def test_metrics(values, fault):
    class Bad(Mean):
        def metrics(self, output, target):
            return values

    loss = build_plugin(plugin(LOSS, lambda _: Bad()), NoOptions())
    assert message(loss.metrics, torch.ones(3, 2), None) == f'loss "bad" of my-plugins is broken: {fault}'


def test_a_sound_loss_is_handed_on_to_the_bit():
    loss = build_plugin(plugin(LOSS, lambda _: Mean()), NoOptions())
    output = torch.randn(3, 2, requires_grad=True)
    assert torch.equal(loss(output, None), output.mean())
    with torch.no_grad():
        assert loss(output, None).requires_grad is False
    assert loss.metrics(output, None)["top1"] == (output > 0).sum()


# --- data sets --------------------------------------------------------------------------------------------------------


class Split:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def fetch(self, indices, *, seed, epoch):
        raise AssertionError("nothing is fetched to look at a data set")


def opened(**changes):
    return SimpleNamespace(**{"train": Split(8), "test": Split(4), "facts": FACTS, **changes})


@pytest.mark.parametrize(
    ("built", "fault"),
    [
        (None, "its build returns None without `train`"),
        (SimpleNamespace(train=Split(1)), "its build returns a SimpleNamespace without `test`"),
        (
            opened(test=Split("4")),
            "the length of its split `test` cannot be had: TypeError: 'str' object cannot be interpreted as an integer",
        ),
        (
            opened(test=Split(0)),
            "its split `test` is empty; where files are missing, its build raises SpecError",
        ),
        (opened(train=[1, 2]), "its split `train` is a list without the method `fetch`"),
        (opened(facts=None), "its facts are None, not DataFacts"),
        (
            opened(facts=attrs.evolve(FACTS, shape=(2, 0))),
            "its facts have shape = (2, 0), not a tuple of integers above 0",
        ),
        (opened(facts=attrs.evolve(FACTS, shape=(3,))), "its declaration says shape = [2], and its files [3]"),
        (opened(facts=attrs.evolve(FACTS, classes=7)), "its declaration says classes = 3, and its files 7"),
    ],
)
def test_a_data_set(built, fault):
    made = plugin(DATA_SET, lambda _: built)
    assert message(build_plugin, made, NoOptions()) == f'data set "bad" of my-plugins is broken: {fault}'


def test_files_complete_the_facts():
    found = opened(facts=attrs.evolve(FACTS, class_names=("a", "b", "c")))
    assert build_plugin(plugin(DATA_SET, lambda _: found), NoOptions()) is found


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        (None, "are None, not DataFacts"),
        (DataFacts(shape=[3, 8, 8]), "have shape = [3, 8, 8], not a tuple of integers above 0"),
        (
            DataFacts(shape=(3, 8, 8), dtype="float16"),
            "have dtype = 'float16', not one of uint8, int64, float32, float64",
        ),
        (DataFacts(shape=(3,), classes="ten"), "have classes = 'ten', not a number of classes"),
        (DataFacts(shape=(3,), target_shape=[4]), "have target_shape = [4], not a tuple of integers above 0"),
        (
            DataFacts(shape=(3,), target_dtype="uint8"),
            "have target_dtype = 'uint8', not one of int64, float32, float64",
        ),
        (DataFacts(shape=(3,), mean=(0.5,)), "have one of mean and std; give both, or neither"),
        (
            DataFacts(shape=(3, 8, 8), mean=(0.5,) * 2, std=(1.0,) * 2),
            "have 2 values in mean, and samples of 3 channels",
        ),
        (DataFacts(shape=(3,), classes=2, class_names=("a",)), "have 1 class_names, and classes = 2"),
    ],
)
def test_facts_of_a_declaration(facts, fault):
    made = plugin(DATA_SET, lambda _: opened(), facts=lambda _: facts)
    expected = f'data set "bad" of my-plugins is broken: the facts of its declaration {fault}'
    assert message(declared_facts, made, NoOptions()) == expected


# --- architectures, loggers, callbacks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "fault"),
    [
        (None, "its build returns None, not a tuple of NodeSpec"),
        ((), "its build returns no node"),
        ([NodeSpec(name="a", block="b"), {}], "its build returns a dict among its nodes, not a NodeSpec"),
    ],
)
def test_an_architecture(nodes, fault):
    made = plugin(ARCHITECTURE, lambda options, facts: nodes)
    assert message(expand, made, NoOptions(), FACTS) == f'architecture "bad" of my-plugins is broken: {fault}'


def test_a_logger_and_a_callback():
    made = plugin(LOGGER, lambda options, run: SimpleNamespace(record=print))
    assert message(build_plugin, made, NoOptions(), None) == (
        'logger "bad" of my-plugins is broken: its build returns a SimpleNamespace without the method `close`'
    )
    made = plugin(CALLBACK, lambda options: None)
    assert message(build_plugin, made, NoOptions()) == (
        'callback "bad" of my-plugins is broken: its build returns None, not a Callback'
    )
    assert isinstance(build_plugin(plugin(CALLBACK, lambda _: Callback()), NoOptions()), Callback)
