"""The fixtures of petra-graph's own tests."""

from tests.conftest import here, install, one_thread, saved_run, saved_runs, shared_folder, site, write  # noqa: F401
from tests.promises.conftest import whole_run  # noqa: F401
