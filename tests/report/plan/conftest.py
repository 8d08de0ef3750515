"""Documents that take a moment to make."""

from __future__ import annotations

import pytest

from tests.support import plan_documents as documents


@pytest.fixture(scope="session")
def two_hundred():
    return documents.two_hundred()
