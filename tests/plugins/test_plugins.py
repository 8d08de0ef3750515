"""What a plugin builds and raises: refused by name before a training, a traceback with a note in it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import attrs
import pytest
import torch
from attrs import frozen

import petra_graph
from petra_graph.errors import PluginError, RunFailed, SpecError
from petra_graph.plugins import DataFacts, Horizon, NoOptions, ParameterGroups
from petra_graph.plugins.author_code import author_code, author_line, is_author_code, noted
from petra_graph.plugins.contract import Plugin, build_plugin
from petra_graph.plugins.data_set import declared_facts
from petra_graph.plugins.kinds import ARCHITECTURE, DATA_SET, LOSS, LR_SCHEDULE, METRIC, OPTIMIZER, expand

FACTS = DataFacts(shape=(2,), dtype="float32", classes=3)


@frozen(kw_only=True)
class Rate:
    lr: float = 0.1


def plugin(kind, build, **more):
    """A plugin whose `build` is this function."""
    needed = {OPTIMIZER: {"options": Rate}, DATA_SET: {"facts": lambda _: FACTS}}.get(kind, {})
    declaration = kind.declaration(summary="x", build="a:b", **{**needed, **more})
    return Plugin(kind=kind, name="bad", distribution="my-plugins", declaration=declaration, code=build)


def fault(call, *arguments):
    with pytest.raises(PluginError) as error:
        call(*arguments)
    head = ' "bad" of my-plugins is broken: '
    assert head in str(error.value)
    return str(error.value).partition(head)[2]


def parameters():
    decayed, undecayed = ([torch.nn.Parameter(torch.ones(2))] for _ in range(2))
    return ParameterGroups(decayed=decayed, undecayed=undecayed)


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda given, _: None, "its build returns NoneType, not a torch.optim.Optimizer"),
        (lambda given, _: torch.optim.SGD(given.decayed, lr=1.0), "its groups leave out 1 of the 2 parameters"),
        (
            lambda given, _: torch.optim.SGD([*given.decayed, *given.undecayed] * 2),
            "a parameter is in its groups twice",
        ),
    ],
)
def test_an_optimizer_has_each_parameter_once(build, message):
    assert fault(build_plugin, plugin(OPTIMIZER, build), parameters(), Rate()).startswith(message)


def test_a_build_that_raises_is_named_with_its_line():
    with pytest.raises(PluginError, match='optimizer "bad" of my-plugins cannot be built: AttributeError: ') as error:
        build_plugin(plugin(OPTIMIZER, lambda given, _: given.nothing), parameters(), Rate())
    assert f"raised at {__file__}:" in str(error.value)


def test_a_factor_of_the_rate_is_a_number_of_python():
    horizon = Horizon(updates=10, updates_per_epoch=5, warmup_updates=0)
    factor = build_plugin(plugin(LR_SCHEDULE, lambda _, __: lambda u: torch.tensor(0.5)), NoOptions(), horizon)
    assert type(factor(3)) is float


class Mean:
    def __call__(self, output, target):
        return output.mean()

    def metrics(self, output, target):
        return {"top1": (output > 0).sum()}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            lambda output: output.mean(1),
            "it returns float32 [3], not a scalar of real numbers: the mean over the samples",
        ),
        (lambda output: 3.0, "it returns float, not a scalar"),
        (lambda output: output.sum().long(), "it returns int64 [], not a scalar"),
        (lambda output: output.mean().detach(), "it returns a scalar without a graph"),
    ],
)
def test_the_first_value_of_a_loss(value, message):
    class Bad(Mean):
        def __call__(self, output, target):
            return value(output)

    loss = build_plugin(plugin(LOSS, lambda _: Bad()), NoOptions())
    assert fault(loss, torch.ones(3, 2, requires_grad=True), None).startswith(message)


def test_a_sound_loss_is_handed_on_to_the_bit():
    loss = build_plugin(plugin(LOSS, lambda _: Mean()), NoOptions())
    output = torch.randn(3, 2, requires_grad=True)
    assert torch.equal(loss(output, None), output.mean())
    with torch.no_grad():
        assert loss(output, None).requires_grad is False
    assert loss.metrics(output, None)["top1"] == (output > 0).sum()
    assert not hasattr(loss, "target_weight")


def test_values_of_a_metric_are_numbers_by_name():
    for value, expected in ((torch.tensor(0.5), {"": 0.5}), ({"a": 1, "b": torch.ones(())}, {"a": 1.0, "b": 1.0})):
        metric = SimpleNamespace(update=lambda output, target: None, compute=lambda value=value: value)
        assert build_plugin(plugin(METRIC, lambda _, metric=metric: metric), NoOptions()).compute() == expected


class Split:
    def __len__(self):
        return 8

    def fetch(self, indices, *, seed, epoch):
        raise AssertionError("nothing is fetched to look at a data set")


def opened(**changes):
    return SimpleNamespace(**{"train": Split(), "test": Split(), "facts": FACTS, **changes})


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (None, "its build returns NoneType without `train`"),
        (opened(facts=None), "its facts are NoneType, not DataFacts"),
        (opened(facts=attrs.evolve(FACTS, shape=(3,))), "its declaration says shape = [2], and its files [3]"),
        (opened(facts=attrs.evolve(FACTS, classes=7)), "its declaration says classes = 3, and its files 7"),
    ],
)
def test_a_data_set_has_the_facts_of_its_declaration(built, message):
    assert fault(build_plugin, plugin(DATA_SET, lambda _: built), NoOptions()) == message


def test_files_complete_the_facts():
    found = opened(facts=attrs.evolve(FACTS, class_names=("a", "b", "c")))
    assert build_plugin(plugin(DATA_SET, lambda _: found), NoOptions()) is found


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (None, "are NoneType, not DataFacts"),
        (DataFacts(shape=[3, 8, 8]), "have shape = [3, 8, 8], not a tuple of integers above 0"),
        (DataFacts(shape=(3,), dtype="float16"), "have dtype = 'float16', not one of uint8, int64, float32, float64"),
        (
            DataFacts(shape=(3,), target_dtype="uint8"),
            "have target_dtype = 'uint8', not one of int64, float32, float64",
        ),
        (DataFacts(shape=(3,), classes="ten"), "have classes = 'ten', not the number of classes of one target"),
        (DataFacts(shape=(3,), mean=(0.5,)), "have std = None, not a number for each channel of one input"),
        (DataFacts(shape=(3, 8, 8), mean=(0.5,) * 2, std=(1.0,) * 3), "have mean = (0.5, 0.5), not a number for each"),
        (DataFacts(shape=(3,), mean=(5.0,), std=(1.0,)), "have mean = (5.0,), not within [0, 1]"),
        (DataFacts(shape={"a": (2,)}), "have not a type in dtype"),
        (DataFacts(shape={"a": (2,)}, dtype={"a": "int8"}), "have dtypea = 'int8', not one of"),
    ],
)
def test_facts_of_a_declaration(facts, message):
    made = plugin(DATA_SET, lambda _: opened(), facts=lambda _: facts)
    assert fault(declared_facts, made, NoOptions()).startswith(f"the facts of its declaration {message}")


@pytest.mark.parametrize("nodes", [(), [{}]])
def test_an_architecture_returns_nodes(nodes):
    made = plugin(ARCHITECTURE, lambda options, facts: nodes)
    assert fault(expand, made, NoOptions(), FACTS) == "its build returns something else than a tuple of NodeSpec"


@pytest.mark.parametrize(
    ("file", "authors"),
    [
        (__file__, True),
        (torch.__file__, False),
        (petra_graph.__file__, False),
        (json.__file__, False),
        ("<string>", False),
        ("/anywhere/lib/site-packages/my_package/blocks.py", True),
    ],
)
def test_files_of_authors(file, authors):
    assert is_author_code(file) is authors


def test_the_innermost_line_of_the_author():
    def fails():
        torch.ones(2) + torch.ones(3)  # the line

    with pytest.raises(RuntimeError) as raised:
        fails()
    assert author_line(raised.value) == f"{__file__}:{fails.__code__.co_firstlineno + 1}"


def test_an_exit_is_the_plugins_but_not_an_interruption_nor_an_error_of_ours():
    with pytest.raises(RunFailed, match="sample 3: SystemExit: 7"), author_code(lambda: "sample 3", error=RunFailed):
        raise SystemExit(7)
    for ours in (KeyboardInterrupt(), SpecError("no")):
        with pytest.raises(type(ours)), author_code("the loss failed"):
            raise ours


def test_in_a_training_an_exception_keeps_its_class_and_has_a_note():
    context = noted("loss of my-plugins")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as raised, context:
            _ = 1 / 0
        assert raised.value.__notes__ == ["loss of my-plugins"]
