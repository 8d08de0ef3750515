"""What these tests share with the core's."""

import pytest

from tests.conftest import forgotten_afterwards, here, install, one_thread, site, write  # noqa: F401


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine, promises that are asked late would not be asked."""
    monkeypatch.setattr("petra_graph_conformance.run_check.LIMIT_SECONDS", 600.0)
