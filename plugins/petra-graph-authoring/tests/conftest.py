"""The fixtures of petra-graph's own tests."""

from tests.conftest import here, install, one_thread, site, write  # noqa: F401
