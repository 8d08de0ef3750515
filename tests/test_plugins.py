"""`petra_graph.plugins`: one import without torch, and help that is read at once."""

from __future__ import annotations

import pydoc
import re
import subprocess
import sys

import pytest

from petra_graph import blocks, plugins
from petra_graph.plugins.kinds import KINDS

SCREEN = 60


@pytest.mark.processes
def test_it_imports_neither_torch_nor_numpy():
    code = "import sys, petra_graph.plugins; sys.exit(bool({'torch', 'numpy', 'networkx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_has_every_declaration():
    assert {kind.declaration.__name__ for kind in KINDS} <= set(vars(plugins))


@pytest.mark.parametrize("module", [plugins, blocks])
def test_the_help_of_a_public_module_is_read_at_once(module):
    assert len(pydoc.render_doc(module, renderer=pydoc.plaintext).splitlines()) < SCREEN


def test_the_help_names_what_authors_call():
    bases = ("AdditiveCoupling", "TwoFunctionCoupling", "Reversible", "Buffered", "Head")
    assert [name for name in bases if f"`{name}`" not in blocks.__doc__ or not hasattr(blocks, name)] == []


def test_its_help_is_short_and_names_every_group_with_its_declaration():
    text = pydoc.render_doc(plugins, renderer=pydoc.plaintext)
    assert len(text.splitlines()) < SCREEN
    for kind in KINDS:
        assert re.search(rf"`{kind.group}` \| `{kind.declaration.__name__}`", text)
