"""Fixtures of the repository's tests."""

from tests.conftest import here, one_thread, write  # noqa: F401
from tests.promises.conftest import whole_run  # noqa: F401
