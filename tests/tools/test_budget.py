"""Lines of code are counted without what explains them, and a room above its budget is named."""

from __future__ import annotations

from click.testing import CliRunner

from tools import budget
from tools.budget import Room, compared, lines_of_code

MODULE = '''\
"""What it is,

at length.
"""

import os  # counts, whatever stands behind


class Here:
    """What it is."""

    name: str = "a"
    """What it is for."""

    def call(self) -> str:
        # why
        return """text
that is a value"""
'''


def test_blank_lines_comments_and_docstrings_are_no_code():
    assert lines_of_code(MODULE) == 6
    assert lines_of_code("") == 0


def test_a_room_is_a_package_and_loose_modules_are_one(tmp_path):
    for name, text in {"a.py": "x = 1\n", "b.py": "\ny = 2\n", "near/__init__.py": "", "near/far/c.py": MODULE}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert budget.rooms(tmp_path) == {
        "modules": Room(modules=2, code=2, lines=3),
        "near": Room(modules=2, code=6, lines=len(MODULE.splitlines())),
    }


def test_a_room_above_its_budget_is_named_with_what_to_do():
    found = {name: Room(modules=1, code=1200, lines=9000) for name in ("exact", "above", "new")}
    assert compared(found, {"exact": 1200, "above": 1180, "old": 3}) == [
        (
            "petra_graph/above has 1,200 lines of code, 20 more than its budget of 1,180: take lines out, or raise the budget in "
            "tools/budget.toml by a commit of its own that says why"
        ),
        "petra_graph/new has no budget in tools/budget.toml",
        "tools/budget.toml has a budget for old, and no such room is there",
    ]


def test_budgets_are_written_a_tenth_above_what_is_there(tmp_path, monkeypatch):
    for name, lines in {"small": 10, "large": 1001}.items():
        (tmp_path / "petra_graph" / name).mkdir(parents=True)
        (tmp_path / "petra_graph" / name / "a.py").write_text("x = 1\n" * lines)
    monkeypatch.setattr(budget, "ROOT", tmp_path)
    monkeypatch.setattr(budget, "BUDGET", tmp_path / "budget.toml")
    done = CliRunner().invoke(budget.main, ["--write"])
    assert (done.exit_code, done.output) == (
        0,
        """\
room   modules   code  lines  budget
large        1  1,001  1,001   1,102
small        1     10     10      11
all          2  1,011  1,011   1,113
""",
    )
    (tmp_path / "petra_graph" / "small" / "a.py").write_text("x = 1\n" * 12)
    done = CliRunner().invoke(budget.main, [])
    assert done.exit_code == 1
    assert "petra_graph/small has 12 lines of code, 1 more" in done.output
