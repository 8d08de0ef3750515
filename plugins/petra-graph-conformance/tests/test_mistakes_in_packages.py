"""Mistakes in a package of plugins: what it requires, options without annotation, settings that its import leaves changed."""

from __future__ import annotations

import json

import attrs
import pytest
import torch
from petra_graph_conformance import CallbackTrial

from petra_graph.cli.main import main
from petra_graph.plugins import CallbackDeclaration
from tests.support.kit import ask
from tests.support.plugin_of_each_kind import declared

CODE = """
import torch
from petra_graph.plugins import Callback

class Mine(Callback):
    def __init__(self, options):
        pass
"""
ENTRY = "[petra_graph.callbacks]\nmine = my_callbacks:Mine\n"


def test_a_requirement_that_is_not_met(install, capsys):
    metadata = install("my-callbacks", ENTRY, my_callbacks=CODE) / "METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: attrs<1\nRequires-Dist: no-such-package>=2\n")
    assert main(["check", "my-callbacks"]) == 4
    said = capsys.readouterr().out
    assert "package: my-callbacks requires attrs<1 (found 2" in said
    assert "no-such-package>=2 (found none)" in said


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("torch.set_grad_enabled(False)", "torch.is_grad_enabled() is False"),
        ("torch.set_default_dtype(torch.float64)", "torch.get_default_dtype() is torch.float64"),
    ],
)
def test_an_import_that_leaves_a_setting_changed(install, capsys, line, found):
    install("my-callbacks", ENTRY, my_callbacks=f"{CODE}\n{line}\n")
    assert main(["check", "callbacks/mine"]) == 4
    said = capsys.readouterr().out
    assert (
        f'callback "mine" of my-callbacks cannot be loaded from "my_callbacks:Mine": after its import, {found}'
        in said.replace("'", '"')
    )
    assert "set it within `with`" in said
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float32)


@pytest.mark.parametrize("verb", [["list", "callbacks"], ["show", "callbacks/mine"], ["check", "callbacks/mine"]])
def test_what_prints_at_import_is_in_no_result(install, capsys, verb):
    install("my-callbacks", ENTRY, my_callbacks=f"print('imported')\n{CODE}")
    assert main([*verb, "--json"]) == 0
    said = capsys.readouterr()
    json.loads(said.out)
    assert said.err == "imported\n"


DECLARED = """
from petra_graph.plugins import BlockDeclaration
Kind = BlockDeclaration(summary="of another kind", build="my_code:Passes", kind="reversible", streams=2)
Nowhere = BlockDeclaration(summary="nowhere", build="my_lost:Passes", kind="buffered", streams=2)
Nameless = BlockDeclaration(summary="nameless", build="my_code:Lost", kind="buffered", streams=2)
"""
PASSES = """
from petra_graph.blocks import Buffered
class Passes(Buffered):
    streams = 2
    def forward(self, x, t):
        return x, t
"""
SPEC = """
name = "wrong"
[[graph.node]]
name = "first"
block = "linear-stem"
options = {{ features = 6 }}
[[graph.node]]
name = "wrong"
block = "{block}"
[[graph.node]]
name = "head"
block = "pool-linear"
options = {{ outputs = 3 }}
[data]
name = "random"
batch = 8
options = {{ shape = [4], dtype = "float32", classes = 3, train = 40, test = 8 }}
[run]
epochs = 1
"""


@pytest.mark.parametrize("block", ["kind", "nowhere", "nameless"])
def test_the_doctor_and_a_run_say_the_same_of_code_that_is_not_what_its_declaration_says(install, write, capsys, block):
    install(
        "my-blocks",
        f"[petra_graph.blocks]\n{block} = my_declared:{block.title()}\n",
        my_declared=DECLARED,
        my_code=PASSES,
    )
    assert main(["doctor", "--json"]) == 4
    findings = json.loads(capsys.readouterr().out)["findings"]
    [found] = [one for one in findings if one["name"] == f"blocks/{block}"]
    write("wrong.toml", SPEC.format(block=block))
    assert main(["run", "wrong.toml", "--dry-run"]) == 4
    said = capsys.readouterr().err
    assert found["status"] == "broken"
    assert found["remedy"] in said
    assert found["found"].rpartition(", and ")[2] in said


@attrs.frozen(kw_only=True)
class Options:
    every: int = 1
    path = "here"


def test_an_option_without_annotation():
    with pytest.raises(
        AssertionError, match=r"path of Options has no annotation, so that it is no option\n.*path: float"
    ):
        ask(CallbackTrial.of(declared(CallbackDeclaration, print, options=Options)), "declaration")
