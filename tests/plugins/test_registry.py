"""Resolving names: unknown, ambiguous, broken, and where each is blamed."""

import pytest

from petra_graph.errors import PluginError, SpecError
from petra_graph.plugins.kinds import BLOCK, LOSS, OPTIMIZER
from petra_graph.plugins.registry import Registry, discover

CODE = """\
class Block:
    kind = "buffered"
    def __init__(self, inputs, *, size: int = 1): ...

def optimizer(groups, *, lr: float = 0.1): ...
"""


@pytest.fixture
def found(install, site):
    install(
        "my-blocks",
        "[petra_graph.blocks]\nmine = my_code:Block\n[petra_graph.optimizers]\nmine = my_code:optimizer\n",
        my_code=CODE,
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
    assert (plugin.name, plugin.distribution, plugin.code.kind) == (name, "my-blocks", "buffered")


def test_finding_plugins_imports_none(install, site):
    install("my-blocks", "[petra_graph.blocks]\nmine = raises_at_once:X\n", raises_at_once="raise SystemExit(3)\n")
    assert discover([str(site)]).names(BLOCK) == ("mine",)


def test_unknown_name(found):
    said = "unknown block \"mime\"\n    help: did you mean 'mine'? allowed: mine"
    assert problem(found, BLOCK, "mime", SpecError) == said
    assert problem(found, LOSS, "mine", SpecError) == 'unknown loss "mine"\n    help: allowed: nothing'
    assert problem(found, BLOCK, "my-blocks:other", SpecError).startswith('unknown block "my-blocks:other"')


def test_an_unknown_name_may_be_in_an_unreadable_distribution(install, site):
    (install("broken", "") / "entry_points.txt").write_bytes(b"[petra_graph.blocks]\n\xff\xfe")
    assert problem(discover([str(site)]), BLOCK, "mine", SpecError) == (
        'unknown block "mine"\n    help: allowed: nothing; entry points that could not be read: broken'
    )


def test_two_distributions_with_one_name_are_refused_where_the_name_is_used(found, install, site):
    install("other-blocks", "[petra_graph.blocks]\nmine = my_code:Block\nfree = my_code:Block\n")
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
    # a name that nobody wrote, as of a default or in an architecture
    assert registry.within(BLOCK, "mine", ["other-blocks", "my-blocks"]) == "other-blocks:mine"
    assert registry.within(BLOCK, "mine", ["absent"]) == "mine"
    assert registry.within(BLOCK, "free", ["my-blocks", "other-blocks"]) == "free"


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


def test_plugins_of_other_projects_can_be_left_out(found, monkeypatch, site):
    monkeypatch.setenv("PETRA_GRAPH_PLUGINS", "0")
    assert discover([str(site)]).names(BLOCK) == ()
    assert "rev-basic" in discover().names(BLOCK)
