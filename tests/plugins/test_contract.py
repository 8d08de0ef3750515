"""The signature is the schema: what is read of it, and what is refused, of each kind of plugin and of code that knows nothing of this project."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Dict, Literal  # noqa: UP035

import attrs
import pytest
import torch
from torch import nn

from petra_graph.errors import PluginError, SpecError
from petra_graph.plugins import AdditiveCoupling, AtLeast, Code, DataFacts, ParameterGroups
from petra_graph.plugins.contract import (
    ARCHITECTURE,
    BLOCK,
    CALLBACK,
    DATA_SET,
    LOSS,
    LR_SCHEDULE,
    METRIC,
    OPTIMIZER,
    plugin_of,
)
from petra_graph.plugins.data_set import declared_facts
from petra_graph.spec.strict_values import describe

FACTS = DataFacts(shape=(2,), dtype="float32", classes=3)


def _odd(value):
    if value % 2 == 0:
        raise ValueError("must be odd")


class Wide(AdditiveCoupling):
    """A block with options of its own."""

    def __init__(
        self,
        inputs,
        *,
        kernel: Annotated[int, "side of the kernel", AtLeast(1), _odd] = 3,
        mode: Literal["a", "b"] = "a",
        shares: tuple[float, ...] = (0.5,),
    ):
        super().__init__(inputs)


class Wider(Wide):
    """The same, and one more."""

    def __init__(self, inputs, *, bias: bool = True, **options):
        super().__init__(inputs, **options)


def opened(
    *, root: Path, code: Code | None = None, table: Mapping[str, Any] = {}, size: float | torch.Tensor = 1, more=()
): ...


opened.facts = FACTS


def read(kind, code, values=None):
    return plugin_of(kind, "mine", code).read(values or {}, ("options",))


def problems(kind, code, values):
    return [one.message for one in read(kind, code, values)[1]]


def built(kind, code, *given, **values):
    plugin, wrong = read(kind, code, values)
    assert not wrong
    return plugin.build(*given)


def test_keyword_parameters_are_the_options_with_types_defaults_and_bounds():
    plugin, _ = read(BLOCK, Wide)
    assert plugin.options == plugin.schema(kernel=3, mode="a", shares=(0.5,))
    values = {"kernel": 4, "mode": "c", "shares": [1, "x"], "kernal": 1}
    assert problems(BLOCK, Wide, values) == [
        'block "mine": kernel: must be odd (got 4)',
        'block "mine": mode: must be one of "a", "b" (got "c")',
        'block "mine": shares.1: must be a number (got "x")',
        'block "mine": unknown key kernal',
    ]


def nested(
    *,
    sides: tuple[Annotated[int, AtLeast(1)], ...] = (),
    pair: tuple[Annotated[int, AtLeast(1)], Annotated[int, AtLeast(2)]] = (1, 2),
    rate: Annotated[float, "help", AtLeast(0)] | None = None,
    table: Dict | None = None,  # noqa: UP006
): ...


def test_what_is_said_within_a_list_or_a_union_is_kept():
    nested.facts = FACTS
    assert problems(DATA_SET, nested, {"sides": [1, 0], "pair": [1], "rate": -1, "table": {"a": 1}}) == [
        'data set "mine": sides.1: must be >= 1 (got 0)',
        'data set "mine": pair: must be [an integer >= 1, an integer >= 2] (got [1])',
        'data set "mine": rate: must be >= 0 (got -1)',
    ]


def test_options_that_a_constructor_passes_on_are_those_of_its_base():
    names = [one.name for one in attrs.fields(plugin_of(BLOCK, "mine", Wider).schema)]
    assert names == ["bias", "kernel", "mode", "shares"]


def test_paths_code_tables_and_what_toml_cannot_say():
    fields = attrs.fields_dict(plugin_of(DATA_SET, "mine", opened).schema)
    assert {name: describe(one.type) for name, one in fields.items()} == {
        "root": "a string",
        "code": "a string",
        "table": "a table",
        "size": "a number",
        "more": "anything",
    }
    given = {}

    class Data:
        facts = FACTS
        train = test = ()

        def __init__(
            self, *, root: Path, model: str | Path = "", size: int = 1, sides: [1, 2] = 1, unset: int | None = None
        ):  # type: ignore[valid-type]
            given.update(root=root, model=model, size=size)

    assert built(DATA_SET, Data, root="a/b", model="gpt2").facts is FACTS
    assert given == {"root": Path("a/b"), "model": "gpt2", "size": 1}


@pytest.mark.parametrize(
    ("kind", "code", "fault"),
    [
        (BLOCK, 3, "is an object of class int, not a class or function (inputs, *, ...options) with a signature"),
        (BLOCK, torch.relu, "not a class or function (inputs, *, ...options) with a signature"),
        (BLOCK, nn.Flatten(), "is no class of torch.nn.Module or petra_graph.blocks"),
        (BLOCK, type("Old", (Wide,), {"__init__": lambda self, inputs, options: None}), "is written for petra-graph 0.2"),
        (ARCHITECTURE, lambda *, depth=1: (), "its parameters are (depth)"),
        (OPTIMIZER, lambda groups: None, "has no option `lr`, the base learning rate"),
        (LR_SCHEDULE, lambda horizon: 1.0, "must be a class or function (update, horizon, *, ...options)"),
        (LOSS, "cross-entropy", "is an object of class str, not a class or function"),
        (DATA_SET, lambda: None, "has no `facts`"),
        (CALLBACK, object, "is not a subclass of petra_graph.plugins.Callback"),
    ],
)  # fmt: skip
def test_what_is_no_plugin_of_its_kind_is_refused_when_it_is_resolved(kind, code, fault):
    with pytest.raises(PluginError) as error:
        plugin_of(kind, "mine", code, "my-plugins")
    assert str(error.value).startswith(f'{kind.noun} "mine" of my-plugins ')
    assert fault in str(error.value)


def groups():
    decayed, undecayed = ([nn.Parameter(torch.ones(2))] for _ in range(2))
    return ParameterGroups(decayed=decayed, undecayed=undecayed)


class Split:
    def __len__(self):
        return 8


def a_set(**changes):
    return SimpleNamespace(**{"train": Split(), "test": Split(), "facts": FACTS, **changes})


def of_facts(made, facts=FACTS):
    def code():
        return made

    code.facts = facts
    return code


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
@pytest.mark.parametrize(
    ("kind", "code", "given", "fault"),
    [
        (OPTIMIZER, lambda groups, lr=1.0: None, (groups(),), "AttributeError: 'NoneType' object has no attribute 'param_groups'"),
        (OPTIMIZER, lambda groups, lr=1.0: torch.optim.SGD(groups.decayed), (groups(),), "its groups have not each of the parameters"),
        (OPTIMIZER, lambda groups, lr=1.0: torch.optim.SGD([*groups.decayed, *groups.undecayed] * 2), (groups(),),
         "its groups have not each of the parameters that it was given, once"),
        (METRIC, type("M", (), {}), (), "has no update and no compute"),
        (DATA_SET, of_facts(None), (), "what it builds, an object of class NoneType, has not `train` and `test`"),
        (DATA_SET, of_facts(a_set(facts=attrs.evolve(FACTS, shape=(3,)))), (), "its facts say shape = [2], and its files [3]"),
    ],
)  # fmt: skip
def test_what_breaks_the_contract_when_it_is_built(kind, code, given, fault):
    with pytest.raises(PluginError) as error:
        built(kind, code, *given)
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"shape": (3,), "dtype": "float16"}, 'no samples have shape [3] and type "float16"'),
        ({"shape": (0, 8)}, 'no samples have shape [0, 8] and type "uint8"'),
        ({"shape": 64}, 'no samples have shape 64 and type "uint8"'),
        ({"shape": {"a": (2,)}}, "each has a shape and a type"),
        ({"shape": (3,), "target_shape": 5}, "each has a shape and a type"),
        ({"shape": (3,), "classes": "10"}, 'classes must be 1 or more (got "10")'),
        ({"shape": (3,), "mean": (0.5,)}, "mean and std have a number each"),
        ({"shape": (3,), "mean": (5.0,), "std": (1.0,)}, "of uint8 at most 1 (got [5.0] and [1.0])"),
        ({"shape": (3,), "mean": (), "std": ()}, "mean and std have a number each"),
        ({"shape": (3,), "mean": 0.5, "std": 1.0}, "mean and std have a number each"),
    ],
)
def test_facts_that_no_samples_could_have(facts, said):
    plugin, _ = read(DATA_SET, of_facts(a_set(), lambda: DataFacts(**facts)))
    with pytest.raises(PluginError, match=f'data set "mine": facts failed: .*{re.escape(said)}'):
        declared_facts(plugin)


def test_facts_that_are_something_else():
    plugin, _ = read(DATA_SET, of_facts(a_set(), lambda: None))
    with pytest.raises(PluginError, match='data set "mine" is broken: its facts are an object of class NoneType'):
        declared_facts(plugin)


def test_files_complete_the_facts_and_a_set_without_its_own_has_those_of_its_class():
    found = a_set(facts=attrs.evolve(FACTS, class_names=("a", "b", "c")))
    assert built(DATA_SET, of_facts(found)) is found

    class Plain:
        train = test = Split()

        @staticmethod
        def facts(*, size: int):
            return attrs.evolve(FACTS, shape=(size,))

        def __init__(self, *, size: int = 4, more: int = 1): ...

    assert built(DATA_SET, Plain).facts.shape == (4,)


def test_what_the_code_refuses_is_a_problem_of_its_options_and_what_fails_is_its_authors():
    def refuses(groups, *, lr: float = 0.1):
        raise ValueError("lr is too small")

    def fails(groups, *, lr: float = 0.1):
        return groups.nothing

    with pytest.raises(SpecError, match='optimizer "mine": lr is too small') as error:
        built(OPTIMIZER, refuses, groups())
    assert f"raised at {__file__}:" in str(error.value)
    with pytest.raises(PluginError, match='optimizer "mine" cannot be built: AttributeError: ') as error:
        built(OPTIMIZER, fails, groups())
    assert f"raised at {__file__}:" in str(error.value)


def test_classes_of_torch_are_optimizers_with_groups_with_and_without_decay():
    optimizer = built(OPTIMIZER, torch.optim.AdamW, groups(), lr=0.5, weight_decay=0.2)
    assert [(one["weight_decay"], one["lr"]) for one in optimizer.param_groups] == [(0.2, 0.5), (0.0, 0.5)]
    assert isinstance(built(OPTIMIZER, torch.optim.RMSprop, groups()), torch.optim.RMSprop)


@pytest.mark.parametrize(
    "code",
    [nn.CrossEntropyLoss, nn.CrossEntropyLoss(), nn.functional.cross_entropy, lambda output, target: output.logsumexp(1).mean()],
    ids=["class", "instance", "function", "own function"],
)  # fmt: skip
def test_losses_of_torch_functions_and_instances(code):
    loss = built(LOSS, code)
    output, target = torch.randn(8, 7, requires_grad=True), torch.arange(8) % 7
    assert loss(output, target).requires_grad
    assert loss.metrics(output, target)["top1"] == (output.argmax(1) == target).sum()
    assert loss.metrics(output, torch.randn(8, 7)) == {}


def test_a_loss_with_parameters_that_nothing_trains_is_refused():
    class Learnt(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

    with pytest.raises(SpecError, match="it has parameters of its own, scale, which nothing trains"):
        built(LOSS, Learnt)

    class Holds:
        def __init__(self):
            self.parts, self.functional = [Learnt()], nn.functional  # a module of Python is not looked into

    with pytest.raises(SpecError, match="of its own, parts, which nothing trains"):
        built(LOSS, Holds)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda output: output.mean(1), "it returns float32 [3], not a scalar with a graph: the mean over the samples"),
        (lambda output: 3.0, "it returns float, not a scalar"),
        (lambda output: output.sum().long(), "it returns int64 [], not a scalar"),
        (lambda output: output.mean().detach(), "it returns float32 [], not a scalar with a graph"),
    ],
)  # fmt: skip
def test_the_first_value_of_a_loss(value, message):
    loss = built(LOSS, lambda output, target: value(output))
    with pytest.raises(PluginError) as error:
        loss(torch.ones(3, 2, requires_grad=True), None)
    assert message in str(error.value)


def test_what_a_constructor_draws_follows_from_the_seed_and_the_name_of_the_plugin():
    class Draws:
        train = test = Split()
        facts = FACTS

        def __init__(self):
            self.drawn = torch.rand(1)

    plugin, _ = read(DATA_SET, Draws)
    drawn = [attrs.evolve(plugin, seed=seed).build().drawn for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
