"""Tables of the command line: a line a row in a pipe, broken within the last column on a terminal."""

from __future__ import annotations

import os
import sys

import pytest

from petra_graph.cli.options_and_output import print_table

ROWS = [("lr", "", "[bold] " + "word " * 12 + "end"), ("momentum", "", "short")]


@pytest.fixture
def terminal(monkeypatch):
    def of(columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))

    return of


def test_a_row_is_a_line_in_a_pipe_and_empty_columns_are_left_out(capsys):
    print_table(ROWS, indent=2)
    assert capsys.readouterr().out == f"  lr        [bold] {'word ' * 12}end\n  momentum  short\n"


def test_a_terminal_breaks_the_last_column_within_itself(capsys, terminal):
    terminal(50)
    print_table(ROWS, indent=2)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "  lr        [bold] word word word word word word"
    assert second == "            word word word word word word end"
    assert third == "  momentum  short"


def test_a_terminal_too_narrow_for_that_loses_nothing(capsys, terminal):
    terminal(20)
    print_table(ROWS)
    assert capsys.readouterr().out == f"lr        [bold] {'word ' * 12}end\nmomentum  short\n"


def test_no_rows_print_nothing(capsys):
    print_table([])
    assert capsys.readouterr().out == ""
