"""What the tests of views share: runs that have a plan."""

from __future__ import annotations

import json

import pytest

from tests.conftest import saved_runs as trained_runs  # noqa: F401


@pytest.fixture(scope="session")
def saved_runs(trained_runs):  # noqa: F811
    """The directories of small runs, each with its plan."""
    from petra_graph.planning.plan_spec import Planner

    for directory in trained_runs.values():
        made = Planner(str(directory / "resolved.toml")).plan()
        (directory / "plan.json").write_text(json.dumps(made.as_json()))
    return trained_runs
