"""The names of `petra_graph` that this distribution adds, and what the core says without it."""

from __future__ import annotations

import numpy as np
import pytest

import petra_graph as pg
from petra_graph.errors import SpecError

INSTALL = "install petra-graph-export: in a clone of petra-graph, `pip install ./plugins/petra-graph-export`"


def test_a_run_predicts_and_exports(trained, tmp_path):
    run, samples = pg.Run(trained), np.zeros((2, 3, 8, 6), np.uint8)
    assert run.predict(samples, top=1) == pg.predict(str(trained), samples, top=1)
    assert run.export("safetensors", tmp_path / "a.safetensors") == pg.export(
        trained, "safetensors", tmp_path / "a.safetensors"
    )


def test_a_form_that_does_not_exist():
    with pytest.raises(SpecError, match="did you mean 'onnx'"):
        pg.export("latest", "onx")
