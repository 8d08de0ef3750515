"""The names of `petra_graph` that this distribution adds, and what the core says without it."""

from __future__ import annotations

import numpy as np
import pytest

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.registry import discovery

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


def test_without_it(monkeypatch, capsys):
    entries = [one for one in discovery.scan()[0] if one.distribution != "petra-graph-export"]
    monkeypatch.setattr(discovery, "scan", lambda *_: (tuple(entries), ()))
    monkeypatch.setattr("petra_graph.cli.plugin_verbs.scan", lambda *_: (tuple(entries), ()))
    for name in ("export", "predict"):
        assert main([name, "latest"]) == 2
        assert f"The verb {name!r} is not installed: {INSTALL}." in capsys.readouterr().err
    for name in ("export", "predict", "sample"):
        with pytest.raises(AttributeError, match=f"no attribute {name!r}: install petra-graph-export: "):
            getattr(pg, name)
    run = pg.Run("runs/a")
    for name, call in (
        ("export", lambda: run.export("onnx")),
        ("predict", lambda: run.predict([])),
        ("sample", run.sample),
    ):
        with pytest.raises(SpecError) as caught:
            call()
        said = f"Run.{name} needs petra-graph-export, which is not installed\n    help: {INSTALL}"
        assert str(caught.value) == said
