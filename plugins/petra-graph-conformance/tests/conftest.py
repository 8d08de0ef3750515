"""What these tests share with the core's."""

from tests.conftest import forgotten_afterwards, here, install, site, write  # noqa: F401
