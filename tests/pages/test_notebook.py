"""The notebook runs from its first cell to its last, in a folder that has nothing else, and its checks hold."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_the_tour(tmp_path):
    notebook = nbformat.read(ROOT / "specs" / "tour.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    results = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "execute_result"
    ]
    assert results.count("True") == 2, "an evaluation has the run's bits, and onnxruntime agrees"
    assert "even-or-odd: done" in "\n".join(results)
