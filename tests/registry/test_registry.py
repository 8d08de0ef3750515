"""Resolving names: unknown, ambiguous, broken, and where each is blamed."""

import pytest

from petra_graph.errors import PluginError, SpecError
from petra_graph.registry.building import load
from petra_graph.registry.contracts import BLOCKS, LOSSES, OPTIMIZERS
from petra_graph.registry.registry import Registry, discover

DECLARED = """\
from attrs import frozen
from petra_graph.registry.contracts import BlockDeclaration, LossDeclaration, OptimizerDeclaration, option

@frozen(kw_only=True)
class Options:
    lr: float = option("rate", default=0.1)

BLOCK = BlockDeclaration(summary="A block.", build="my_code:Block", kind="buffered")
OPTIMIZER = OptimizerDeclaration(summary="An optimizer.", options=Options, build="my_code:optimizer")
"""


@pytest.fixture
def found(install, site):
    install(
        "my-blocks",
        "[petra_graph.blocks]\nmine = my_declared:BLOCK\n[petra_graph.optimizers]\nmine = my_declared:OPTIMIZER\n",
        my_declared=DECLARED,
        my_code="Block = 3\n",
    )
    return discover([str(site)])


def problem(registry: Registry, group, name, kind):
    with pytest.raises(kind) as caught:
        registry.resolve(group, name)
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize("name", ["mine", "my-blocks:mine", "My_Blocks:mine"])
def test_resolves_a_name_and_a_name_with_its_distribution(found, name):
    plugin = found.resolve(BLOCKS, name)
    assert (plugin.name, plugin.distribution, plugin.declaration.kind) == (name, "my-blocks", "buffered")
    assert load(plugin) == 3


def test_finding_plugins_imports_none(install, site):
    install("my-blocks", "[petra_graph.blocks]\nmine = raises_at_once:X\n", raises_at_once="raise SystemExit(3)\n")
    assert discover([str(site)]).names(BLOCKS) == ("mine",)


def test_unknown_name(found):
    assert problem(found, BLOCKS, "mime", SpecError) == (
        """\
unknown block "mime"
    help: did you mean 'mine'? allowed: mine"""
    )
    assert problem(found, LOSSES, "mine", SpecError) == 'unknown loss "mine"\n    help: allowed: nothing'


def test_unknown_name_of_a_known_distribution(found):
    assert problem(found, BLOCKS, "my-blocks:other", SpecError) == (
        'unknown block "my-blocks:other"\n    help: allowed: mine'
    )


def test_an_unknown_name_may_be_in_an_unreadable_distribution(install, site):
    (install("broken", "") / "entry_points.txt").write_bytes(b"\xff\xfe")
    assert problem(discover([str(site)]), BLOCKS, "mine", SpecError) == (
        'unknown block "mine"\n    help: allowed: nothing; entry points that could not be read: broken'
    )


def test_two_distributions_with_one_name_are_refused_where_the_name_is_used(found, install, site):
    install("other-blocks", "[petra_graph.blocks]\nmine = my_declared:BLOCK\nfree = my_declared:BLOCK\n")
    registry = discover([str(site)])
    assert problem(registry, BLOCKS, "mine", PluginError) == (
        """\
block "mine" is in 2 distributions: my-blocks, other-blocks
    help: write one of them: "my-blocks:mine" or "other-blocks:mine\""""
    )
    assert registry.resolve(BLOCKS, "other-blocks:mine").distribution == "other-blocks"
    assert registry.resolve(BLOCKS, "free").distribution == "other-blocks"
    assert registry.resolve(OPTIMIZERS, "mine").distribution == "my-blocks"
    assert registry.names(BLOCKS) == ("free", "my-blocks:mine", "other-blocks:mine")
    assert registry.only(["other_blocks"]).names(BLOCKS) == ("free", "mine")


@pytest.mark.parametrize(
    ("text", "reason", "line"),
    [
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named 'nothing_of_this_name'", 1),
        ("x = 1\nraise RuntimeError('not today')\n", "RuntimeError: not today", 2),
        ("raise SystemExit(3)\n", "SystemExit: 3", 1),
        ("def f(:\n", "SyntaxError: invalid syntax", 1),
    ],
)
def test_a_plugin_that_raises_is_blamed_with_its_line(install, site, text, reason, line):
    install("bad-blocks", "[petra_graph.blocks]\nbad = bad_module:BLOCK\n", bad_module=text)
    assert problem(discover([str(site)]), BLOCKS, "bad", PluginError) == (
        f"""\
block "bad" of bad-blocks cannot be loaded from 'bad_module:BLOCK': {reason}
    help: raised at {site}/bad_module.py:{line}"""
    )


def test_an_interruption_by_the_keyboard_is_no_fault_of_the_plugin(install, site):
    install("slow-blocks", "[petra_graph.blocks]\nslow = slow_module:BLOCK\n", slow_module="raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        discover([str(site)]).resolve(BLOCKS, "slow")


@pytest.mark.parametrize(
    ("declaration", "fault"),
    [
        ("3", "is int, not BlockDeclaration"),
        ("OPTIMIZER", "is OptimizerDeclaration, not BlockDeclaration"),
        ("BlockDeclaration(summary='', build='a:b', kind='buffered')", "has no summary"),
        ("BlockDeclaration(summary='x', build='a', kind='buffered')", "has build = 'a', not \"module:attribute\""),
        (
            "BlockDeclaration(summary='x', build='a:b', kind='magic')",
            "has kind = 'magic', not one of reversible, buffered, head",
        ),
        (
            "BlockDeclaration(summary='x', build='a:b', kind='head', options=dict)",
            "has options = <class 'dict'>, which is not an attrs class",
        ),
        (
            "BlockDeclaration(summary='x', build='a:b', kind='head', options=Strange)",
            "has options that cannot be read from TOML: set[int] cannot be read from TOML",
        ),
    ],
)
def test_contracts_are_checked_when_a_plugin_is_resolved(install, site, declaration, fault):
    strange = "@frozen(kw_only=True)\nclass Strange:\n    x: set[int]\n"
    install(
        "bad-blocks",
        "[petra_graph.blocks]\nbad = bad_module:BAD\n",
        bad_module=f"{DECLARED}\n{strange}\nBAD = {declaration}\n",
    )
    assert problem(discover([str(site)]), BLOCKS, "bad", PluginError) == (
        f"block \"bad\" of bad-blocks is broken: 'bad_module:BAD' {fault}\n    help: report it to its author"
    )


def test_an_optimizer_without_a_rate_is_no_optimizer(install, site):
    declared = "OptimizerDeclaration(summary='x', build='a:b')"
    install("bad", "[petra_graph.optimizers]\nbad = bad_module:BAD\n", bad_module=f"{DECLARED}\nBAD = {declared}\n")
    assert problem(discover([str(site)]), OPTIMIZERS, "bad", PluginError) == (
        "optimizer \"bad\" of bad is broken: 'bad_module:BAD' has options without `lr` (NoOptions)\n"
        "    help: report it to its author"
    )


def test_code_that_is_not_at_the_declared_location(found):
    with pytest.raises(PluginError) as caught:
        load(found.resolve(OPTIMIZERS, "mine"))
    assert str(caught.value).startswith(
        "optimizer \"mine\" of my-blocks cannot be built from 'my_code:optimizer': "
        "AttributeError: module 'my_code' has no attribute 'optimizer'"
    )
