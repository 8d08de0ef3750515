"""Which line of code is an author's."""

from __future__ import annotations

import json

import pytest
import torch

import petra_graph
from petra_graph.errors import printable
from petra_graph.registry.author_code import author_line, is_author_code


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
    assert author_line(raised.value) == f"{__file__}:{fails.__code__.co_firstlineno + 1}"


def test_nobody_s():
    with pytest.raises(TypeError) as raised:
        printable(3)
    error = raised.value.with_traceback(raised.value.__traceback__.tb_next)
    assert author_line(error) == ""
