"""The list of plugins: each has its line, whatever the import of another one does."""

import pytest
from petra_graph_authoring.survey_of_plugins import PluginSummary, list_groups

from petra_graph.errors import PluginError
from petra_graph.registry.registry import discover

GOOD = """\
from petra_graph.kinds.declaration import NoOptions
from petra_graph.kinds.loss import LossDeclaration
LOSS = LossDeclaration(summary="A\\n  loss.", options=NoOptions, build="my_losses:loss")
"""
MINE = PluginSummary(group="losses", name="mine", distribution="my-losses", summary="A loss.")


def faults(site):
    """Return the fault of each listed plugin, and see that the good one has its line."""
    found = list_groups(discover([str(site)]), ["losses"])
    assert MINE in found
    return {plugin.name: plugin.fault for plugin in found if plugin != MINE}


@pytest.fixture
def install_both(install):
    """Install the good plugin, and one before it and one behind it with a text of their own."""

    def install_them(text):
        install("my-losses", "[petra_graph.losses]\nmine = my_losses:LOSS\n", my_losses=GOOD)
        points = "[petra_graph.losses]\nbad = bad_one:LOSS\nworse = bad_two:LOSS\n"
        install("bad-losses", points, bad_one=text, bad_two=text)

    return install_them


def test_a_plugin_that_is_not_there(install, site):
    install("my-losses", "[petra_graph.losses]\nmine = my_losses:LOSS\ngone = my_losses:GONE\n", my_losses=GOOD)
    assert faults(site) == {
        "gone": "loss \"gone\" of my-losses cannot be loaded from 'my_losses:GONE': "
        "AttributeError: module 'my_losses' has no attribute 'GONE'"
    }


def test_a_build_whose_module_is_missing(install, site):
    """`list` showed the plugin as any other, and `doctor` had nothing to say."""
    text = GOOD.replace("my_losses:loss", "my_losses_gone.loss:Loss")
    install("my-losses", "[petra_graph.losses]\nmine = my_losses:LOSS\n", my_losses=GOOD)
    install("her-losses", "[petra_graph.losses]\nhers = her_losses:LOSS\n", her_losses=text)
    assert faults(site) == {
        "hers": "loss \"hers\" of her-losses cannot be built from 'my_losses_gone.loss:Loss': "
        "ModuleNotFoundError: No module named 'my_losses_gone'"
    }


def test_a_plugin_of_another_api_has_the_cure_that_a_run_names(install, site):
    text = GOOD.replace("build=", "api=99, build=")
    install("my-losses", "[petra_graph.losses]\nmine = my_losses:LOSS\n", my_losses=text)
    registry = discover([str(site)])
    (listed,) = list_groups(registry, ["losses"])
    with pytest.raises(PluginError) as caught:
        registry.resolve(registry.kind("losses"), "mine")
    (problem,) = caught.value.problems
    assert (listed.fault, listed.remedy) == (problem.message, problem.hint)


@pytest.mark.parametrize("text", ["raise SystemExit(0)", "raise GeneratorExit", "1 / 0"])
def test_a_plugin_whose_import_raises_costs_its_own_line(install_both, site, text):
    install_both(text)
    assert set(found := faults(site)) == {"bad", "worse"}
    assert all(found.values())


@pytest.mark.parametrize("summary", ["None", "3", "b'A loss.'", "'  '"])
def test_a_summary_that_is_no_text_is_a_fault(install, site, summary):
    install("my-losses", "[petra_graph.losses]\nmine = my_losses:LOSS\n", my_losses=GOOD)
    text = GOOD.replace('"A\\n  loss."', summary)
    install("bad-losses", "[petra_graph.losses]\nbad = bad_one:LOSS\n", bad_one=text)
    assert faults(site) == {"bad": "loss \"bad\" of bad-losses is broken: 'bad_one:LOSS' has no summary"}


def test_a_declaration_whose_attributes_raise_is_a_fault(install, site):
    install("my-losses", "[petra_graph.losses]\nmine = my_losses:LOSS\n", my_losses=GOOD)
    text = f"{GOOD}class Bad(LossDeclaration):\n    build = property(lambda self: 1 / 0)\nLOSS = Bad.__new__(Bad)\n"
    install("bad-losses", "[petra_graph.losses]\nbad = bad_one:LOSS\n", bad_one=text)
    assert faults(site) == {"bad": 'loss "bad" of bad-losses cannot be read: ZeroDivisionError: division by zero'}
