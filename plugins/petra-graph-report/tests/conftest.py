"""What the tests of pages share with those of the core, and documents that take a moment to make."""

from __future__ import annotations

import pytest
from petra_graph_report.plan.plan_page import plan_page

from tests.conftest import here, install, saved_run, saved_runs, site, write  # noqa: F401
from tests.support import plan_documents as documents


@pytest.fixture(scope="session")
def two_hundred():
    return documents.two_hundred()


@pytest.fixture(scope="session")
def large_page(two_hundred):
    return plan_page(two_hundred)
