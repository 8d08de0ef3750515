"""Listings that name their files run: those of a reversible network, of a block, of "I have this", and the notebook."""

import ast
import json
import sys
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from types import ModuleType

import pytest
import torch

from petra_graph.cli.main import main
from petra_graph.testing import Trial
from tests.support import ROOT
from tests.support.kit import kept
from tests.support.pages import Page, files_of


@pytest.mark.parametrize("name", ["usage.py", "transformer.py"])
def test_a_reversible_network_trains(name):
    torch.manual_seed(0)
    names = {}
    exec(files_of(Page(ROOT / "petra_graph" / "autograd" / "README.md"))[name], names)
    module = names.get("network") or names["body"]
    assert all(one.isfinite().all() for one in module.parameters())
    if name == "transformer.py":
        assert all(one.grad is not None for one in module.parameters())


def test_the_block_with_a_mask_keeps_every_promise():
    names = {}
    exec(files_of(Page(ROOT / "petra_graph" / "blocks" / "README.md"))["masked.py"], names)

    def draw(shape, generator):
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 3:
            return values
        mask = (values > 0).long()
        mask[:, 0] = 1
        return mask

    kept(Trial.of(names["Masked"], [(5, 8), (5, 8), (5,)], draw=draw))


I_HAVE_THIS = files_of(Page(ROOT / "plugins" / "guide" / "i_have_this.md"))


@pytest.mark.parametrize("name", [one for one in I_HAVE_THIS if one.endswith(".toml") and one != "base.toml"])
def test_what_one_has_trains_untouched(name, write, capsys):
    if name == "metric.toml" and find_spec("torchmetrics") is None:
        pytest.skip("torchmetrics is not installed")
    for file, text in I_HAVE_THIS.items():
        write(file, text)
    write("quickstart.toml", (ROOT / "specs" / "quickstart.toml").read_text())
    assert main(["run", name, "--json", "--set", "run.epochs=1", "--set", "run.micro_batches=4"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert isfinite(summary["test"]["loss"])
    assert 0 <= summary["test"]["top1"] <= 1
    assert (Path(summary["directory"]) / "weights.safetensors").exists()


@pytest.mark.slow
def test_the_tour(here, monkeypatch):
    """Its cells in their order, as the module in which a notebook's cells are, with less training; ONNX has tests of its own."""
    notebook = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    shown = []
    for cell in json.loads((ROOT / "specs" / "tour.ipynb").read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or "onnxruntime" in source:
            continue
        for long, short in (('epochs": 10', 'epochs": 2'), ('epochs": 4', 'epochs": 1'), ("range(3)", "range(1)")):
            source = source.replace(long, short)
        statements = ast.parse(source).body
        last = [ast.Expression(statements.pop().value)] if statements and isinstance(statements[-1], ast.Expr) else []
        exec(compile(ast.Module(statements, []), "a cell", "exec"), vars(notebook))
        shown += [eval(compile(one, "a cell", "eval"), vars(notebook)) for one in last]
    assert sum(one is True for one in shown) == 1, "an evaluation has the run's bits"
    assert any("even-or-odd: done" in repr(one) for one in shown)
