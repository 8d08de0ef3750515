"""What the tests of pages share with those of the core, runs that have a plan, and documents that take a moment to make."""

from __future__ import annotations

import json

import pytest
from petra_graph_report.plan.plan_page import plan_page

from petra_graph.report.plan.plan_timeline import ticks_once_full
from tests.conftest import here, install, one_thread, saved_run, site, write  # noqa: F401
from tests.conftest import saved_runs as trained_runs  # noqa: F401
from tests.support import plan_documents as documents


@pytest.fixture(scope="session")
def saved_runs(trained_runs):  # noqa: F811
    """The directories of small runs, each with its plan and some ticks of its timeline."""
    from petra_graph.planning.plan_spec import plan

    for directory in trained_runs.values():
        made = plan(str(directory / "resolved.toml")).document(with_timeline=True)
        (directory / "plan.json").write_text(json.dumps(made | {"timeline": []}))
        (directory / "timeline.json").write_text(json.dumps(ticks_once_full(made, 5)))
    return trained_runs


@pytest.fixture(scope="session")
def two_hundred():
    return documents.two_hundred()


@pytest.fixture(scope="session")
def large_page(two_hundred):
    return plan_page(two_hundred)
