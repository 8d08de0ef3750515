"""Documents that take a moment to make."""

from __future__ import annotations

import pytest

from petra_graph.report.plan.plan_page import plan_page
from tests.support import plan_documents as documents


@pytest.fixture(scope="session")
def two_hundred():
    return documents.two_hundred()


@pytest.fixture(scope="session")
def large_page(two_hundred):
    return plan_page(two_hundred)
