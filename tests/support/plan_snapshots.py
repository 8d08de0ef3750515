"""Whole outputs for small documents. After a change that is meant: `python -m tests.support.plan_snapshots`, then read the diff."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from petra_graph.report.plan_text import plan_text
from tests.support import ROOT
from tests.support.plan_documents import as_plan, branches, three_stages

FOLDER = ROOT / "tests" / "report" / "snapshots"

SNAPSHOTS: Mapping[str, Callable[[], str]] = {
    "small_verbose_80.txt": lambda: plan_text(as_plan(three_stages()), width=80, verbose=True),
    "branches_120.txt": lambda: plan_text(as_plan(branches()), width=120),
}

if __name__ == "__main__":
    for name, write in SNAPSHOTS.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")
