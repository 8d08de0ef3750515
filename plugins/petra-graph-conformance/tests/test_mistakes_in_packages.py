"""Mistakes in a package of plugins: what it requires, options without annotation, settings that its import leaves changed."""

from __future__ import annotations

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


def test_a_module_of_ours_that_is_not_there(install, capsys):
    install("my-callbacks", ENTRY, my_callbacks=f"from petra_graph.registry.contracts import Callback\n{CODE}")
    assert main(["check", "callbacks/mine"]) == 4
    assert "names for plugins are in petra_graph.plugins and petra_graph.blocks" in capsys.readouterr().out


@attrs.frozen(kw_only=True)
class Options:
    every: int = 1
    path = "here"


def test_an_option_without_annotation():
    with pytest.raises(
        AssertionError, match=r"path of Options has no annotation, so that it is no option\n.*path: float"
    ):
        ask(CallbackTrial.of(declared(CallbackDeclaration, print, options=Options)), "declaration")
