"""A block from outside: its distribution is built, installed where it was not, and trained with."""

from __future__ import annotations

import json

import pytest

from tests.support.environments import environment
from tests.support.packages import copied

pytestmark = [pytest.mark.processes, pytest.mark.slow]
BLOCK = "rev-convnext"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The plugin's folder, copied: a spec is written beside its own."""
    return copied("petra-graph-convnext", tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """An environment without the plugin."""
    return environment(tmp_path_factory.mktemp("without"), editable=True)


@pytest.fixture(scope="module")
def installed(source, tmp_path_factory):
    """An environment with the plugin."""
    made = environment(tmp_path_factory.mktemp("installed"), editable=True)
    made.install(source)
    return made


def test_it_is_listed_and_shown(installed):
    listed = {plugin["name"]: plugin for plugin in json.loads(installed.forked("list", "blocks", "--json"))}
    assert listed[BLOCK] == {
        "group": "blocks",
        "remedy": "",
        "name": BLOCK,
        "distribution": "petra-graph-convnext",
        "kind": "reversible",
        "summary": "Reversible ConvNeXt block: additive coupling, depthwise and pointwise convolutions.",
        "fault": "",
        "imports_torch": "",
    }
    assert installed.forked("show", f"blocks/{BLOCK}") == (
        """\
blocks/rev-convnext (petra-graph-convnext, reversible, reads 2 streams)

Reversible ConvNeXt block: additive coupling, depthwise and pointwise convolutions.

Residual function of ConvNeXt: depthwise convolution, normalisation, pointwise expansion, GELU, pointwise.

Liu et al. 2022, https://arxiv.org/abs/2201.03545, figure 4.

options
  kernel     an integer  >= 1       7    pixels  side of the depthwise convolution's kernel
  expansion  an integer  >= 1       4            hidden channels as a multiple of the stream's
  dropout    a number    >= 0, < 1  0.0          probability of dropping a hidden value

    [[graph.node]]
    name = "rev-convnext"
    block = "rev-convnext"
    [graph.node.options]
    # kernel = 7
    # expansion = 4
    # dropout = 0.0
"""
    )


def test_its_example_is_valid_and_its_options_are_checked(installed, source):
    example = str(source / "examples" / "digits.toml")
    assert installed.forked("validate", example)
    bent = source / "examples" / "even.toml"
    bent.write_text((source / "examples" / "digits.toml").read_text().replace("kernel = 5", "kernel = 4"))
    done = installed.fork("validate", str(bent))
    assert done.returncode == 2
    assert "must be odd, so that the convolution keeps the image's size (got 4)" in done.stderr


def test_it_trains(installed, source):
    printed = installed.petra_graph("run", str(source / "examples" / "digits.toml"), "--set", "run.epochs=2", "--json")
    summary = json.loads(printed)
    assert summary["test"]["top1"] > 0.8
    assert BLOCK in (installed.folder / summary["directory"] / "resolved.toml").read_text()


@pytest.mark.thorough
def test_its_own_tests_pass(installed, source):
    done = installed.fork("-q", "-p", "no:cacheprovider", f"--rootdir={source}", str(source), program="pytest")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("verb", ["validate", "run"])
def test_without_it_the_same_spec_names_what_is_missing(without, source, verb):
    done = without.fork(verb, str(source / "examples" / "digits.toml"))
    assert done.returncode == 2
    assert f'block "{BLOCK}" is not installed' in done.stderr
    assert not done.stdout
