"""A plugin of any kind that refuses an option says `path=("size",)`, and its user sees the file, the line and the value."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main

MODULE = """
from petra_graph.blocks import Buffered
from petra_graph.plugins import Callback, DataFacts, NodeSpec, Problem, SpecError

def refuse(*_):
    raise SpecError(Problem(message="there is no such size", hint="take 1", path=("size",)))

class Block(Buffered):
    def __init__(self, inputs, *, size: int = 1):
        super().__init__(inputs)
        refuse()
    def forward(self, *streams):
        return streams

def architecture(facts, *, size: int = 1):
    refuse()

def optimizer(groups, *, size: int = 1, lr: float = 0.1):
    refuse()

def schedule(update, horizon, *, size: int = 1):
    refuse()

def loss(*, size: int = 1):
    refuse()

class Data:
    facts = DataFacts(shape=(1, 8, 8), classes=10)
    def __init__(self, *, size: int = 1):
        refuse()

class Called(Callback):
    def __init__(self, *, size: int = 1):
        refuse()
"""
NODES = """
[[graph.node]]
name = "stem"
block = "conv-stem"
options = { channels = 2 }

[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }
"""
DATA = """
[data]
name = "digits"
"""
TABLES = {
    "block": NODES.replace('"conv-stem"\noptions = { channels = 2 }', '"refuses:Block"\noptions = { size = 3 }') + DATA,
    "architecture": '[architecture]\nname = "refuses:architecture"\noptions = { size = 3 }\n' + DATA,
    "optimizer": NODES + DATA + '[optimizer]\nname = "refuses:optimizer"\noptions = { size = 3 }\n',
    "lr_schedule": NODES + DATA + '[lr_schedule]\nname = "refuses:schedule"\noptions = { size = 3 }\n',
    "loss": NODES + DATA + '[loss]\nname = "refuses:loss"\noptions = { size = 3 }\n',
    "data": NODES + '[data]\nname = "refuses:Data"\noptions = { size = 3 }\n',
    "callback": NODES + DATA + '[[callback]]\nname = "refuses:Called"\noptions = { size = 3 }\n',
}


@pytest.mark.parametrize("kind", TABLES)
def test_the_option_is_shown(write, capsys, kind):
    write("refuses.py", MODULE)
    text = TABLES[kind].removeprefix("\n")
    line = text[: text.index("size = 3")].count("\n") + 1
    assert main(["run", write("a.toml", text), "--dry-run"]) == 2
    of_node = 'node "stem": block "refuses:Block": ' if kind == "block" else ""
    assert capsys.readouterr().err.endswith(f"a.toml:{line}: {of_node}there is no such size\n    help: take 1\n")
