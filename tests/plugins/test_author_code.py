"""What a plugin raises: refused by name before a training, a traceback with a note in it."""

from __future__ import annotations

import pytest
import torch

from petra_graph.errors import RunFailed, SpecError
from petra_graph.plugins.author_code import author_code, author_line, noted


def test_the_innermost_line_of_the_author():
    def fails():
        torch.ones(2) + torch.ones(3)  # the line

    with pytest.raises(RuntimeError) as raised:
        fails()
    assert author_line(raised.value) == f"{__file__}:{fails.__code__.co_firstlineno + 1}"


def test_an_exit_is_the_plugins_but_not_an_interruption_nor_an_error_of_ours():
    with pytest.raises(RunFailed, match="sample 3: SystemExit: 7"), author_code(lambda: "sample 3", error=RunFailed):
        raise SystemExit(7)
    for ours in (KeyboardInterrupt(), SpecError("no")):
        with pytest.raises(type(ours)), author_code("the loss failed"):
            raise ours


def test_in_a_training_an_exception_keeps_its_class_and_has_a_note():
    context = noted("loss of my-plugins")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as raised, context:
            _ = 1 / 0
        assert raised.value.__notes__ == ["loss of my-plugins"]
