"""What the tests of views share: runs that have a plan."""

from __future__ import annotations

import json

import attrs
import pytest

from petra_graph.report.plan_tables import ticks_once_full
from tests.conftest import saved_runs as trained_runs  # noqa: F401


@pytest.fixture(scope="session")
def saved_runs(trained_runs):  # noqa: F811
    """The directories of small runs, each with its plan and some ticks of its timeline."""
    from petra_graph.planning.plan_spec import Planner

    for directory in trained_runs.values():
        made = Planner(str(directory / "resolved.toml")).plan(with_timeline=True)
        (directory / "plan.json").write_text(json.dumps(made.as_json() | {"timeline": []}))
        ticks = [attrs.asdict(event) for event in ticks_once_full(made, 5)]
        (directory / "timeline.json").write_text(json.dumps(ticks))
    return trained_runs
