"""Texts of strangers, in packages, specifications and files, control no terminal and turn no order of letters."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest

from petra_graph.cli.main import main

TRICK = "\x1b]0;owned\x07\u202e"
"""Sets a terminal's title, and turns what follows around."""
ESCAPED = "\\u001b]0;owned\\u0007\\u202e"
PACKAGE = f"""
import torch
from attrs import frozen
from petra_graph.plugins import BlockDeclaration, DataFacts, DataSetDeclaration, LossDeclaration, option

TRICK = {TRICK!r}

class Options:
    __doc__ = TRICK + " documentation"
    size: int = option(TRICK + " help", default=1, unit=TRICK)

Options = frozen(kw_only=True)(Options)

class Loss:
    def __init__(self, options): pass
    def __call__(self, output, target): return torch.nn.functional.cross_entropy(output, target)
    def metrics(self, output, target): return {{TRICK + "[bold]": torch.zeros(())}}

class Split:
    def __len__(self): return 24
    def fetch(self, indices, *, seed, epoch):
        return torch.zeros(len(indices), 1, 4, 4), torch.zeros(len(indices), dtype=torch.int64)

class Data:
    facts = DataFacts(shape=(1, 4, 4), dtype="float32", classes=2, class_names=(TRICK, "b"))
    train = test = Split()
    def __init__(self, options): pass

LOSS = LossDeclaration(summary=TRICK + " summary", options=Options, build=f"{{__name__}}:Loss")
DATA = DataSetDeclaration(summary="x", build=f"{{__name__}}:Data", facts=lambda _: Data.facts)
BROKEN = BlockDeclaration(summary="x", build=f"{{__name__}}:Data", kind=TRICK)
"""
POINTS = """
[petra_graph.losses]
tricky = tricky_plugins:LOSS
[petra_graph.datasets]
tricky = tricky_plugins:DATA
[petra_graph.blocks]
broken = tricky_plugins:BROKEN
[petra_graph.lossy]
lost = tricky_plugins:LOSS
"""
SPEC = """
name = "tricky"
[data]
name = "tricky"
batch = 8
[loss]
name = "tricky"
[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 4 }
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 2 }
"""


@pytest.fixture
def said(write, install, capsys):
    """What a command line prints, which is safe."""
    install("tricky-plugins", POINTS, tricky_plugins=PACKAGE)
    write("a.toml", SPEC)

    def call(*words: str, code: int = 0) -> str:
        assert main(list(words)) == code
        printed = "".join(capsys.readouterr())
        unsafe = {letter for letter in printed if unicodedata.category(letter) in {"Cc", "Cf"}} - {"\n", "\t"}
        assert not unsafe, (words, printed)
        return printed

    return call


def test_what_packages_say_of_their_plugins(said):
    assert f"{ESCAPED} summary" in said("list")
    assert f"{ESCAPED} summary" in said("list", "losses")
    shown = said("show", "losses/tricky")
    assert all(f"{ESCAPED} {word}" in shown for word in ("summary", "documentation", "help"))
    for words in (["list"], ["show", "losses/tricky"], ["schema"]):
        said(*words, *(["--json"] if words != ["schema"] else []))
    assert "owned" in said("show", "blocks/broken", code=4)
    said("check", "tricky-plugins", code=4)


def test_what_is_typed(said):
    assert "owned" in said("show", f"losses/{TRICK}", code=2)
    assert "owned" in said("list", TRICK, code=2)
    assert "owned" in said(TRICK, code=2)
    assert "owned" in said("validate", f"{TRICK}.toml", code=2)
    assert "owned" in said("runs", f"no/{TRICK}", code=2)


def test_a_run_and_what_is_asked_of_it(said, here):
    assert ESCAPED in said("run", "a.toml", "--set", "run.epochs=1")
    assert ESCAPED in said("evaluate", "latest")
    said("runs")
    np.save(here / f"{TRICK}.npy", np.zeros((1, 4, 4), np.float32))
    assert said("predict", "latest", f"{TRICK}.npy").count(ESCAPED) == 2
    said("export", "latest", "--format", "safetensors", "--output", f"{TRICK}.safetensors")
    said("report", "latest", "--output", f"{TRICK}.html")


@pytest.mark.parametrize("form", ["text", "json", "html", "trace"])
def test_a_saved_plan(said, here, form):
    document = json.loads(said("plan", "a.toml", "--json"))
    text = json.dumps(document | {"name": TRICK, "assumptions": [TRICK]})
    (here / "saved.json").write_text(text.replace('"stem"', json.dumps(TRICK)))
    assert "owned" in said("plan", "saved.json", "--format", form)
