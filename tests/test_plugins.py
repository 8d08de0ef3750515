"""`petra_graph.plugins`: one import without torch, and help that is read at once."""

from __future__ import annotations

import pydoc
import subprocess
import sys

import pytest

from petra_graph import blocks, plugins

SCREEN = 60


@pytest.mark.processes
def test_it_imports_neither_torch_nor_numpy():
    code = "import sys; from petra_graph.plugins import Callback, NodeSpec, StageFacts; sys.exit(bool({'torch', 'numpy', 'networkx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("module", [plugins, blocks])
def test_the_help_of_a_public_module_is_read_at_once(module):
    assert len(pydoc.render_doc(module, renderer=pydoc.plaintext).splitlines()) < SCREEN


def test_the_help_names_what_authors_call():
    bases = ("AdditiveCoupling", "TwoFunctionCoupling", "Reversible", "Buffered", "Head")
    assert [name for name in bases if f"`{name}`" not in blocks.__doc__ or not hasattr(blocks, name)] == []
