"""Every plugin that is installed: its options can be read, listed, shown and pasted."""

import tomllib

import attrs
import pytest
from petra_graph_conformance.options_in_words import Option, list_options, snippet

from petra_graph.kinds.all_kinds import KINDS
from petra_graph.kinds.block import BLOCK
from petra_graph.kinds.loss import LOSS
from petra_graph.kinds.plugin import read_options
from petra_graph.registry.registry import discover
from petra_graph.spec.value_layers import PLUGIN_LISTS, PLUGIN_TABLES

REGISTRY = discover().only(["petra-graph"])
ALL = [(kind, name) for kind in REGISTRY.kinds for name in REGISTRY.names(kind)]


def test_every_table_that_names_a_plugin_has_a_kind():
    assert {kind.table for kind in KINDS if not kind.several} == {*PLUGIN_TABLES, ""}
    assert {kind.table for kind in KINDS if kind.several} == set(PLUGIN_LISTS)


def table_of(values, kind):
    """The table that names the plugin; loggers and callbacks are listed."""
    table = values["graph"]["node"] if kind == BLOCK else next(iter(values.values()))
    return table[0] if isinstance(table, list) else table


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_the_snippet_to_paste_is_right(kind, name):
    plugin = REGISTRY.resolve(kind, name)
    pasted = tomllib.loads(snippet(plugin))
    table = table_of(pasted, kind)
    assert table["block" if kind == BLOCK else "name"] == name
    options, problems = read_options(plugin, table.get("options", {}), ("options",))
    assert problems == ()
    assert isinstance(options, plugin.declaration.options)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_the_snippet_with_its_defaults_means_the_same(kind, name):
    plugin = REGISTRY.resolve(kind, name)
    with_defaults = tomllib.loads(snippet(plugin).replace("\n# ", "\n"))
    table = table_of(with_defaults, kind)
    required = {option.name: table["options"][option.name] for option in list_options(plugin) if option.required}
    explicit, problems = read_options(plugin, table.get("options", {}), ())
    assert problems == ()
    assert explicit == read_options(plugin, required, ())[0]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_option_has_a_help_text(kind, name):
    assert [option.name for option in list_options(REGISTRY.resolve(kind, name)) if not option.help] == []


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_options_are_frozen_and_by_keyword(kind, name):
    options = REGISTRY.resolve(kind, name).declaration.options
    assert all(attribute.kw_only for attribute in attrs.fields(options))


PLUGIN = """\
from attrs import frozen
from petra_graph.kinds.declaration import option
from petra_graph.kinds.loss import LossDeclaration
from petra_graph.spec.bounds import AtLeast, OneOf

@frozen(kw_only=True)
class Options:
    share: float = option("how much", unit="per cent", validator=AtLeast(0))
    words: tuple[str, ...] = option("which", default=("a", "b"))
    mode: str = option("how", default="x", validator=OneOf("x", "y"))
    rest: int | None = option("what is left", default=None)

LOSS = LossDeclaration(summary="A loss.", options=Options, build="a:b")
"""


def test_options_one_by_one(install, site):
    install("my-losses", "[petra_graph.losses]\nmine = my_losses:LOSS\n", my_losses=PLUGIN)
    plugin = discover([str(site)]).resolve(LOSS, "mine")
    assert list_options(plugin) == (
        Option(
            name="share", type="a number", limits=">= 0", required=True, default=None, unit="per cent", help="how much"
        ),
        Option(
            name="words",
            type="a list of strings",
            limits="",
            required=False,
            default=["a", "b"],
            unit="",
            help="which",
        ),
        Option(name="mode", type="a string", limits='"x" | "y"', required=False, default="x", unit="", help="how"),
        Option(name="rest", type="an integer", limits="", required=False, default=None, unit="", help="what is left"),
    )
    assert snippet(plugin) == (
        """\
[loss]
name = "mine"
[loss.options]
share = 0.1
# words = ["a", "b"]
# mode = "x\""""
    )


def test_problems_name_the_plugin(install, site):
    install("my-losses", "[petra_graph.losses]\nmine = my_losses:LOSS\n", my_losses=PLUGIN)
    plugin = discover([str(site)]).resolve(LOSS, "mine")
    _, problems = read_options(plugin, {"shar": 3, "mode": "z"}, ("loss", "options"))
    assert [(problem.path, problem.message) for problem in problems] == [
        (("loss", "options", "mode"), 'mode in the options of loss "mine" must be one of "x", "y" (got "z")'),
        (("loss", "options", "shar"), 'unknown key "shar" in the options of loss "mine"'),
    ]
