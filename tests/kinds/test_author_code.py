"""Which line of code is an author's."""

from __future__ import annotations

import json

import pytest
import torch

import petra_graph
from petra_graph import errors
from petra_graph.errors import PluginError, printable
from petra_graph.kinds.author_code import author_line, is_author_code, raised_at, resolve_location


@pytest.mark.parametrize(
    ("file", "authors"),
    [
        (__file__, True),
        (torch.__file__, False),
        (petra_graph.__file__, False),
        (json.__file__, False),
        ("<string>", False),
        ("/anywhere/lib/site-packages/my_package/blocks.py", True),
    ],
)
def test_files(file, authors):
    assert is_author_code(file) is authors


def test_the_innermost_line_of_the_author():
    def fails():
        torch.ones(2) + torch.ones(3)  # the line

    with pytest.raises(RuntimeError) as raised:
        fails()
    line = f"{__file__}:{fails.__code__.co_firstlineno + 1}"
    assert author_line(raised.value) == raised_at(raised.value) == line


def test_nobody_s():
    with pytest.raises(TypeError) as raised:
        printable(3)
    error = raised.value.with_traceback(raised.value.__traceback__.tb_next)
    assert author_line(error) == ""
    assert raised_at(error).startswith(f"{errors.__file__}:"), "better than no line"


def test_an_import_that_nobody_wrote_has_no_line():
    with pytest.raises(PluginError) as raised:
        resolve_location("no_such_module:Anything", "it")
    assert raised_at(raised.value.__cause__) == ""
