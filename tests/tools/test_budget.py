"""Modules and lines are counted by room, and a room above its budget is named."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tools import budget
from tools.budget import Room, compared

FILES = {
    "petra_graph/a.py": "x = 1\n",
    "petra_graph/b.py": "\ny = 2\n",
    "petra_graph/near/__init__.py": "",
    "petra_graph/near/far/c.py": '"""What it is."""\n\nz = 3\n',
    "plugins/petra-graph-far/src/petra_graph_far/d.py": "w = 4\n" * 10,
    "plugins/petra-graph-far/tests/test_d.py": "v = 5\n",
}
FOUND = {
    "petra_graph/modules": Room(modules=2, lines=3),
    "petra_graph/near": Room(modules=2, lines=3),
    "plugins/petra-graph-far": Room(modules=1, lines=10),
}


@pytest.fixture
def house(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(budget, "ROOT", tmp_path)
    monkeypatch.setattr(budget, "BUDGET", tmp_path / "budget.toml")
    return tmp_path


def test_a_room_is_a_package_the_loose_modules_or_a_distribution(house):
    assert budget.rooms(house) == FOUND


def test_a_room_above_its_budget_is_named_with_what_to_do():
    found = {name: Room(modules=2, lines=1200) for name in ("exact", "above", "new")}
    budgets = {"exact": found["exact"], "above": Room(modules=1, lines=1180), "old": Room(modules=1, lines=3)}
    remedy = "take some out, or raise the budget in tools/budget.toml by a commit of its own that says why"
    assert compared(found, budgets) == [
        f"above has 2 modules, 1 more than its budget of 1: {remedy}",
        f"above has 1,200 lines, 20 more than its budget of 1,180: {remedy}",
        "new has no budget in tools/budget.toml",
        "tools/budget.toml has a budget for old, and no such room is there",
    ]


def test_budgets_are_written_as_what_is_there(house):
    done = CliRunner().invoke(budget.main, ["--write"])
    assert (done.exit_code, done.output) == (
        0,
        """\
room                     modules  of  lines  of
petra_graph/modules            2   2      3   3
petra_graph/near               2   2      3   3
plugins/petra-graph-far        1   1     10  10
all of petra_graph             4   4      6   6
all of plugins                 1   1     10  10
""",
    )
    (house / "petra_graph" / "near" / "far" / "c.py").write_text("x = 1\n" * 12)
    done = CliRunner().invoke(budget.main, [])
    assert done.exit_code == 1
    assert "petra_graph/near has 12 lines, 9 more than its budget of 3" in done.output
