"""The fixtures of petra-graph's own tests: among them a run that all tests of this folder open."""

from tests.conftest import here, install, one_thread, site, write  # noqa: F401
from tests.inference.conftest import letters, opened, trained  # noqa: F401
