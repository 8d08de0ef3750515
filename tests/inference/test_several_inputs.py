"""A network of several inputs: exported programs name them, and files of samples have an array for each."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

import petra_graph as pg
from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.pages import Page, files_of
from tests.support.runs import only_run

SHOWN = files_of(Page(ROOT / "plugins" / "guide" / "samples.md"))


@pytest.fixture
def run(write, capsys):
    for name, text in SHOWN.items():
        write(name, text)
    sys.modules.pop("two_inputs", None)
    assert main(["run", "two_inputs.toml", "--set", "run.epochs=1"]) == 0
    capsys.readouterr()
    return only_run("runs")


@pytest.mark.parametrize("form", ["torch-export", "onnx"])
def test_a_program_reads_the_inputs_by_their_names(run, form):
    if form == "onnx":
        onnx = pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")
    assert main(["export", str(run), "--format", form, "--output", "written.pt2"]) == 0
    samples = {"image": torch.zeros(3, 1, 4, 4, dtype=torch.uint8), "numbers": torch.ones(3, 3)}
    if form == "onnx":
        model = onnx.load("written.pt2")
        assert [one.name for one in model.graph.input] == ["image", "numbers"]
        (normalised,) = [one.value for one in model.metadata_props if one.key == "normalisation"]
        assert json.loads(normalised) == {"image": {"divided_by": 255}}
    else:
        program = torch.export.load("written.pt2").module()
        with torch.no_grad():
            torch.testing.assert_close(program(samples), pg.load(run)(samples))


def test_samples_are_read_from_a_file_of_arrays(run, capsys):
    samples = {"numbers": np.ones((2, 3), np.float32), "image": np.zeros((2, 1, 4, 4), np.uint8)}
    np.savez("samples.npz", **samples)
    assert main(["predict", str(run), "samples.npz"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert len(pg.open_run(run).predict(samples)) == 2
