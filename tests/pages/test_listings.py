"""Listings that name their files run: those of a reversible network, of a block, of "I have this", and the notebook."""

from __future__ import annotations

import json
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

import nbformat
import pytest
import torch
from nbclient import NotebookClient

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


@pytest.mark.processes
@pytest.mark.slow
def test_the_tour(tmp_path):
    """In a folder that has nothing else, from the first cell to the last, with less training, and its checks hold."""
    notebook = nbformat.read(ROOT / "specs" / "tour.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None)
        for long, short in (
            ('"epochs": 10', '"epochs": 2'),
            ('"run.epochs": 4', '"run.epochs": 1'),
            ("range(3)", "range(1)"),
        ):
            cell.source = cell.source.replace(long, short)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    results = [one["data"]["text/plain"] for one in outputs if one["output_type"] == "execute_result"]
    assert results.count("True") == 2, "an evaluation has the run's bits, and onnxruntime agrees"
    assert "even-or-odd: done" in "\n".join(results)
