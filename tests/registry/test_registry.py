"""Resolving names: unknown, ambiguous, broken, and where each is blamed."""

import pytest

from petra_graph.errors import PluginError, SpecError
from petra_graph.kinds.all_kinds import GROUP, KINDS
from petra_graph.kinds.block import BLOCK
from petra_graph.kinds.loss import LOSS
from petra_graph.kinds.optimizer import OPTIMIZER
from petra_graph.kinds.plugin import load
from petra_graph.registry.discovery import NOT_PLUGINS
from petra_graph.registry.registry import Registry, discover

DECLARED = """\
from attrs import frozen
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.declaration import option
from petra_graph.kinds.loss import LossDeclaration
from petra_graph.kinds.optimizer import OptimizerDeclaration

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
    plugin = found.resolve(BLOCK, name)
    assert (plugin.name, plugin.distribution, plugin.declaration.kind) == (name, "my-blocks", "buffered")
    assert load(plugin) == 3


def test_finding_plugins_imports_none(install, site):
    install("my-blocks", "[petra_graph.blocks]\nmine = raises_at_once:X\n", raises_at_once="raise SystemExit(3)\n")
    assert discover([str(site)]).names(BLOCK) == ("mine",)


def test_unknown_name(found):
    assert problem(found, BLOCK, "mime", SpecError) == (
        """\
unknown block "mime"
    help: did you mean 'mine'? allowed: mine"""
    )
    assert problem(found, LOSS, "mine", SpecError) == 'unknown loss "mine"\n    help: allowed: nothing'


def test_unknown_name_of_a_known_distribution(found):
    assert problem(found, BLOCK, "my-blocks:other", SpecError) == (
        'unknown block "my-blocks:other"\n    help: allowed: mine'
    )


def test_an_unknown_name_may_be_in_an_unreadable_distribution(install, site):
    (install("broken", "") / "entry_points.txt").write_bytes(b"\xff\xfe")
    assert problem(discover([str(site)]), BLOCK, "mine", SpecError) == (
        'unknown block "mine"\n    help: allowed: nothing; entry points that could not be read: broken'
    )


def test_two_distributions_with_one_name_are_refused_where_the_name_is_used(found, install, site):
    install("other-blocks", "[petra_graph.blocks]\nmine = my_declared:BLOCK\nfree = my_declared:BLOCK\n")
    registry = discover([str(site)])
    assert problem(registry, BLOCK, "mine", PluginError) == (
        """\
block "mine" is in 2 distributions: my-blocks, other-blocks
    help: write one of them: "my-blocks:mine" or "other-blocks:mine\""""
    )
    assert registry.resolve(BLOCK, "other-blocks:mine").distribution == "other-blocks"
    assert registry.resolve(BLOCK, "free").distribution == "other-blocks"
    assert registry.resolve(OPTIMIZER, "mine").distribution == "my-blocks"
    assert registry.names(BLOCK) == ("free", "my-blocks:mine", "other-blocks:mine")
    assert registry.only(["other_blocks"]).names(BLOCK) == ("free", "mine")


def test_entry_points_that_name_what_is_gone(install, site):
    """A package installed for editing keeps its old entry points until it is installed again."""
    points = "[petra_graph.blocks]\nold = renamed_blocks:OLD\nolder = renamed:OLDER\n"
    install("my-blocks", points, renamed_blocks="NEW = 1\n")
    for name in ("old", "older"):
        said = problem(discover([str(site)]), BLOCK, name, PluginError)
        assert said.endswith("; install my-blocks again if its entry points have changed")


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
    assert problem(discover([str(site)]), BLOCK, "bad", PluginError) == (
        f"""\
block "bad" of bad-blocks cannot be loaded from 'bad_module:BLOCK': {reason}
    help: raised at {site}/bad_module.py:{line}"""
    )


def test_an_interruption_by_the_keyboard_is_no_fault_of_the_plugin(install, site):
    install("slow-blocks", "[petra_graph.blocks]\nslow = slow_module:BLOCK\n", slow_module="raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        discover([str(site)]).resolve(BLOCK, "slow")


@pytest.mark.parametrize(
    ("declaration", "fault"),
    [
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
            "BlockDeclaration(summary='x', build='a:b', kind='head', streams=0)",
            "has streams = 0, not the number of tensors that the block reads",
        ),
        (
            "BlockDeclaration(summary='x', build='a:b', kind='head', options=Strange)",
            (
                "has options that cannot be read from TOML: `x` is of type set[int]; allowed are bool, int, float, str, "
                "Literal, lists, tuples and dicts of these, unions of them, and attrs classes"
            ),
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
    assert problem(discover([str(site)]), BLOCK, "bad", PluginError) == (
        f"block \"bad\" of bad-blocks is broken: 'bad_module:BAD' {fault}\n    help: report it to its author"
    )


def test_what_is_neither_a_declaration_nor_code_says_what_to_write(install, site):
    install("bad-blocks", "[petra_graph.blocks]\nbad = bad_module:BAD\n", bad_module="BAD = 3")
    assert problem(discover([str(site)]), BLOCK, "bad", PluginError) == (
        "block \"bad\" of bad-blocks is broken: 'bad_module:BAD' is not a class with a `kind`, as blocks are\n"
        '    help: subclass one of petra_graph.blocks, and give it an attrs class `Options`; or name any other torch.nn.Module as an option of the block "module"'
    )


def test_a_misspelt_group_is_named(install, site):
    points = "[petra_graph.block]\nmine = my_declared:BLOCK\n[petra-graph.losses]\nl1 = my_declared:LOSS\n"
    install("my-blocks", points + "[petra_graph.gadgets]\nx = y:z\n[petra_graph_extra.things]\nx = y:z\n")
    registry = discover([str(site)])
    assert [str(problem) for _, problem in registry.misplaced] == [
        """\
my-blocks registers "mine" in the entry-point group "petra_graph.block", which does not exist
    help: its author must write "petra_graph.blocks\"""",
        """\
my-blocks registers "l1" in the entry-point group "petra-graph.losses", which does not exist
    help: its author must write "petra_graph.losses\"""",
        f"""\
my-blocks registers "x" in the entry-point group "petra_graph.gadgets", which does not exist
    help: allowed: {", ".join(sorted([GROUP, *NOT_PLUGINS, *(kind.group for kind in KINDS)]))}""",
    ]
    assert problem(registry, BLOCK, "mine", SpecError) == (
        """\
unknown block "mine"
    help: allowed: nothing; my-blocks registers "mine" in the entry-point group "petra_graph.block", \
which does not exist: its author must write "petra_graph.blocks\""""
    )
    assert "registers" not in problem(registry, LOSS, "mine", SpecError)


def test_the_distribution_of_a_name_that_nobody_wrote(found, install, site):
    install("other-blocks", "[petra_graph.blocks]\nmine = my_declared:BLOCK\nfree = my_declared:BLOCK\n")
    registry = discover([str(site)])
    assert registry.within(BLOCK, "mine", ["other-blocks", "my-blocks"]) == "other-blocks:mine"
    assert registry.within(BLOCK, "mine", ["absent", "my-blocks"]) == "my-blocks:mine"
    assert registry.within(BLOCK, "mine", ["absent"]) == "mine"
    assert registry.within(BLOCK, "free", ["my-blocks", "other-blocks"]) == "free"
    assert registry.within(BLOCK, "my-blocks:mine", ["other-blocks"]) == "my-blocks:mine"


WRONG_DEFAULTS = [
    ("int = option('x', default='three')", 'size must be an integer (got "three")'),
    ("int = option('x', default=None)", "size is None, and its type has no None"),
    ("tuple[int, ...] = option('x', default=(1, 2.5))", "size[1] must be an integer (got 2.5)"),
    ("Literal['a', 'b'] = option('x', default='c')", 'size must be one of "a", "b" (got "c")'),
    ("float = option('x', default=float('inf'))", "size must be a finite number (got inf)"),
    ("int = option('x', default=0, validator=AtLeast(1))", "size must be at least 1 (got 0)"),
    ("list[int] = field(factory=lambda: ['a'])", 'size[0] must be an integer (got "a")'),
]


@pytest.mark.parametrize(("option", "fault"), WRONG_DEFAULTS)
def test_a_default_that_its_own_type_refuses(install, site, option, fault):
    # A resolved specification would hold the default, and could not be read again.
    declared = f"""\
from typing import Literal
from attrs import field, frozen
from petra_graph.plugins import AtLeast, LossDeclaration, option
@frozen(kw_only=True)
class Options:
    size: {option}
BAD = LossDeclaration(summary="x", options=Options, build="a:b")
"""
    install("bad", "[petra_graph.losses]\nbad = bad_module:BAD\n", bad_module=declared)
    assert problem(discover([str(site)]), LOSS, "bad", PluginError) == (
        f"loss \"bad\" of bad is broken: 'bad_module:BAD' has an option with a wrong default: {fault}\n"
        "    help: report it to its author"
    )


def test_a_default_of_its_type_is_no_fault(install, site):
    declared = """\
from attrs import field, frozen, Factory
from petra_graph.plugins import AtLeast, LossDeclaration, option
@frozen(kw_only=True)
class Inner:
    a: int = 3
@frozen(kw_only=True)
class Options:
    whole: float = option("x", default=1)
    none: int | None = option("x", default=None)
    pair: tuple[float, float] = option("x", default=(0.9, 1))
    table: Inner = field(factory=Inner)
    other: int = field(default=Factory(lambda self: 3, takes_self=True))
GOOD = LossDeclaration(summary="x", options=Options, build="a:b", api=1)
"""
    install("good", "[petra_graph.losses]\ngood = good_module:GOOD\n", good_module=declared)
    assert discover([str(site)]).resolve(LOSS, "good").declaration.api == 1


def test_a_plugin_for_other_contracts_names_both_versions(install, site):
    declared = f"{DECLARED}\nimport attrs\nNEW = attrs.evolve(BLOCK, api=2, summary=3)\n"
    install("new-blocks", "[petra_graph.blocks]\nnew = new_module:NEW\n", new_module=declared)
    assert problem(discover([str(site)]), BLOCK, "new", PluginError) == (
        """\
block "new" of new-blocks is written for plugin API 2, and this petra-graph has plugin API 1
    help: upgrade petra-graph: the plugin was written for a newer one"""
    )


def test_a_plugin_for_older_contracts_is_to_be_upgraded(install, site):
    declared = f"{DECLARED}\nimport attrs\nOLD = attrs.evolve(BLOCK, api=0)\n"
    install("old-blocks", "[petra_graph.blocks]\nold = old_module:OLD\n", old_module=declared)
    assert problem(discover([str(site)]), BLOCK, "old", PluginError).endswith(
        "\n    help: upgrade old-blocks: it was written for an older petra-graph"
    )


def test_an_optimizer_without_a_rate_is_no_optimizer(install, site):
    declared = "OptimizerDeclaration(summary='x', build='a:b')"
    install("bad", "[petra_graph.optimizers]\nbad = bad_module:BAD\n", bad_module=f"{DECLARED}\nBAD = {declared}\n")
    assert problem(discover([str(site)]), OPTIMIZER, "bad", PluginError) == (
        "optimizer \"bad\" of bad is broken: 'bad_module:BAD' has options without `lr` (NoOptions)\n"
        "    help: report it to its author"
    )


def test_an_optimizer_whose_rate_is_no_number(install, site):
    text = DECLARED.replace("lr: float", "lr: int").replace("default=0.1", "default=1")
    install("bad", "[petra_graph.optimizers]\nbad = bad_module:OPTIMIZER\n", bad_module=text)
    assert "has options whose `lr` is of type int, not float" in problem(
        discover([str(site)]), OPTIMIZER, "bad", PluginError
    )


def test_code_that_is_not_at_the_declared_location(found):
    with pytest.raises(PluginError) as caught:
        load(found.resolve(OPTIMIZER, "mine"))
    assert str(caught.value).startswith(
        "optimizer \"mine\" of my-blocks cannot be built from 'my_code:optimizer': "
        "AttributeError: module 'my_code' has no attribute 'optimizer'"
    )
