"""Code of plugins' authors: which line of it is theirs, and what becomes of what it raises."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import petra_graph
from petra_graph import errors
from petra_graph.errors import PluginError, RunFailed, SpecError, printable
from petra_graph.kinds.author_code import author_code, author_line, is_author_code, raised_at, remedy, resolve_location


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


def test_memory_that_runs_out_in_a_training_is_not_the_plugins_fault():
    with pytest.raises(MemoryError), author_code("the loss failed", training=True):
        raise MemoryError
    with pytest.raises(PluginError, match="the loss failed: MemoryError"), author_code("the loss failed"):
        raise MemoryError


def test_an_exit_is_the_plugins_but_not_an_interruption_nor_an_error_of_ours():
    with pytest.raises(RunFailed, match="sample 3: SystemExit: 7"), author_code(lambda: "sample 3", error=RunFailed):
        sys.exit(7)
    for ours in (KeyboardInterrupt(), SpecError("a wrong option")):
        with pytest.raises(type(ours)), author_code("the loss failed"):
            raise ours


@pytest.mark.parametrize(
    ("record", "what_to_do"),
    [
        ('{"url": "file:///here", "dir_info": {"editable": true}}', "mend its code"),
        ('{"url": "file:///here", "dir_info": {}}', "report it to its author"),
        ("{", "report it to its author"),
        (None, "report it to its author"),
    ],
)
def test_a_package_that_is_installed_for_editing_is_its_user_s(record, what_to_do, install, site):
    install("their-plugins", "[petra_graph.losses]\nmine = a:B\n")
    if record is not None:
        next(site.glob("their_plugins*")).joinpath("direct_url.json").write_text(record)
    assert remedy("their-plugins") == what_to_do


def test_what_is_in_no_package_is_its_user_s():
    assert (remedy(""), remedy("no-such-package")) == ("mend its code", "report it to its author")
