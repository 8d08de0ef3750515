"""The fixtures of petra-graph's own tests."""

from tests.conftest import here, install, site, write  # noqa: F401
