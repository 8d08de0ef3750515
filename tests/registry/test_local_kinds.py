"""`name = "my_module:attribute"` for plugins of every kind: a declaration, or the code itself."""

from __future__ import annotations

import sys

import attrs
import pytest

from petra_graph.errors import PluginError, SpecError
from petra_graph.kinds.all_kinds import KINDS
from petra_graph.kinds.block import BLOCK
from petra_graph.kinds.declaration import NoOptions
from petra_graph.kinds.loss import LOSS
from petra_graph.kinds.lr_schedule import LR_SCHEDULE
from petra_graph.kinds.optimizer import OPTIMIZER
from petra_graph.registry.local_plugins import is_local, missing_module, resolve_local
from petra_graph.registry.registry import discover

CODE = """
from attrs import frozen
from petra_graph.plugins import Callback, DataFacts, LossDeclaration, option

@frozen(kw_only=True)
class Rate:
    lr: float = option("rate", default=0.1)

class Block:
    kind = "buffered"

def architecture(options, facts):
    '''Some nodes.

    More.
    '''

def optimizer(groups, options: Rate): ...

def other_words(parameters, rate: Rate): ...

class Schedule:
    Options = Rate
    def __init__(self, options, horizon): ...

class Loss:
    def __init__(self, options: Rate): ...
    def __call__(self, output, target): ...
    def metrics(self, output, target): ...

class Metric:
    better, share = "lower", True
    def __init__(self, options: Rate): ...
    def update(self, output, target): ...
    def compute(self): ...

class OfTorchmetrics:
    higher_is_better = False
    def __init__(self, options): ...

class Data:
    facts = DataFacts(shape=(2,))
    @staticmethod
    def read(options, path): ...

def logger(options, run): ...

class Stops(Callback):
    changes = "length"
    def __init__(self, options): ...

LOSS = LossDeclaration(summary="Declared.", options=Rate, build="local_kinds:Loss")
NEWER = LossDeclaration(summary="Declared.", options=Rate, build="local_kinds:Loss", api=99)
"""
EXPECTED = {
    "blocks": ("Block", "NoOptions"),
    "architectures": ("architecture", "NoOptions"),
    "optimizers": ("optimizer", "Rate"),
    "lr_schedules": ("Schedule", "Rate"),
    "losses": ("Loss", "Rate"),
    "metrics": ("Metric", "Rate"),
    "datasets": ("Data", "NoOptions"),
    "loggers": ("logger", "NoOptions"),
    "callbacks": ("Stops", "NoOptions"),
}


@pytest.fixture(autouse=True)
def module(site):
    (site / "local_kinds.py").write_text(CODE)


def resolved(group, name):
    return discover([]).resolve(discover([]).kind(group), f"local_kinds:{name}").declaration


def test_each_kind_is_here():
    assert set(EXPECTED) == {kind.short for kind in KINDS}


@pytest.mark.parametrize("group", EXPECTED)
def test_code_declares_itself(group):
    name, options = EXPECTED[group]
    declaration = resolved(group, name)
    assert type(declaration) is discover([]).kind(group).declaration
    assert (declaration.build, declaration.options.__name__) == (f"local_kinds:{name}", options)


def test_what_the_code_says_beside():
    assert resolved("architectures", "architecture").summary == "Some nodes."
    assert resolved("losses", "Loss").summary == "Loss"
    assert resolved("datasets", "Data").read == "local_kinds:Data.read"
    metrics = [resolved("metrics", name) for name in ("Metric", "OfTorchmetrics", "Loss")]
    assert [(one.better, one.share) for one in metrics] == [("lower", True), ("lower", False), ("higher", False)]
    assert (resolved("callbacks", "Stops").changes, resolved("callbacks", "Stops").reads_weights) == ("length", False)


def test_a_declaration_is_what_it_is():
    assert resolved("losses", "LOSS").summary == "Declared."


@pytest.mark.parametrize(
    ("group", "name", "message"),
    [
        ("losses", "NEWER", "is written for plugin API 99, and this petra-graph has plugin API 1"),
        ("optimizers", "LOSS", "is LossDeclaration, not OptimizerDeclaration"),
        ("losses", "Data", "is not a class or function (options) -> Loss"),
        ("callbacks", "Loss", "is not a subclass of petra_graph.plugins.Callback, which is built as cls(options)"),
        (
            "callbacks",
            "Stopps",
            ": the module 'local_kinds' has no 'Stopps'\n    help: did you mean 'Stops'? allowed: Stops",
        ),
        ("blocks", "Rate", "is not a subclass of a class of petra_graph.blocks"),
    ],
)
def test_what_is_none(group, name, message):
    with pytest.raises(PluginError) as caught:
        resolved(group, name)
    assert f'"local_kinds:{name}"' in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (LOSS, "torch.nn:CrossEntropyLoss"),
        (OPTIMIZER, "torch.optim:AdamW"),
        (LR_SCHEDULE, "torch.optim.lr_scheduler:OneCycleLR"),
    ],
)
def test_torchs_own_classes_have_other_arguments(kind, name):
    with pytest.raises(PluginError, match="is not a class or function"):
        discover([]).resolve(kind, name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("my_module:MyBlock", True),
        ("a.b:C.D", True),
        ("my-blocks:mine", False),
        ("rev-basic", False),
        ("a:b:c", False),
        ("a:", False),
        ("3a:b", False),
    ],
)
def test_the_form_of_a_name(name, expected):
    assert is_local(name) is expected


def test_a_module_is_looked_for_on_the_path_and_then_in_the_folders(here, site):
    (here / "block_right_here.py").write_text("class B:\n    kind = 'head'\n")
    (here / "random.py").write_text("raise SystemExit('a file beside the spec was taken for the library')\n")
    assert missing_module("block_right_here:B", [str(here)]) is None
    assert missing_module("block_right_here:B", []) is not None
    resolve_local(BLOCK, "block_right_here:B", [str(here)])
    assert sys.path[-1] == str(here)
    with pytest.raises(SpecError) as caught:
        discover([]).resolve(BLOCK, "block_nowhere:B")
    assert str(caught.value) == (
        f"""\
block "block_nowhere:B" has no module: 'block_nowhere' is neither importable nor a distribution with blocks
    help: modules are looked for on Python's path and in {here}"""
    )


def test_a_distribution_of_the_same_name_wins(install, site):
    install("blocks_and_module", "[petra_graph.blocks]\nB = x:y\n", blocks_and_module="")
    assert not discover([str(site)]).is_local("blocks_and_module:B", BLOCK)
    assert discover([]).is_local("blocks_and_module:B", BLOCK)


def test_a_class_of_another_module_may_be_named_where_it_is_imported():
    """petra_graph.blocks has only names that come from elsewhere."""
    registry = discover([])
    assert registry.resolve(registry.kind("blocks"), "petra_graph.blocks:SpaceToDepth").declaration.kind == "reversible"
    with pytest.raises(PluginError, match="did you mean 'SpaceToDepth'"):
        registry.resolve(registry.kind("blocks"), "petra_graph.blocks:SpaceToDept")


def test_two_distributions_and_a_module(install, site):
    """A name that two packages have can be written so that it means one."""
    for name in ("one", "two"):
        install(f"{name}-losses", "[petra_graph.losses]\nsame = local_kinds:LOSS\n")
    registry = discover([str(site)])
    with pytest.raises(PluginError) as caught:
        registry.resolve(registry.kind("losses"), "same")
    assert str(caught.value) == (
        'loss "same" is in 2 distributions: one-losses, two-losses\n'
        '    help: write one of them: "one-losses:same" or "two-losses:same"'
    )
    for name in ("one-losses:same", "two-losses:same", "local_kinds:LOSS"):
        plugin = registry.resolve(registry.kind("losses"), name)
        assert attrs.asdict(plugin.declaration)["summary"] == "Declared."
    assert plugin.declaration.options is not NoOptions
