"""`petra_graph.plugins`: one import without torch, and all names that it says it has."""

from __future__ import annotations

import subprocess
import sys

import pytest

from petra_graph import plugins


@pytest.mark.processes
def test_it_imports_neither_torch_nor_numpy():
    code = "import sys; from petra_graph.plugins import Callback, NodeSpec, StageFacts; sys.exit(bool({'torch', 'numpy', 'networkx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_name_is_there():
    assert [name for name in plugins.__all__ if not hasattr(plugins, name)] == []
