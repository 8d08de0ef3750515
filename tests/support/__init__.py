"""What tests share; no test is in here."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository: tests may run from any folder."""
SERVER = "PETRA_GRAPH_TESTS_FORKSERVER"
"""The variable with the address of what forks for all workers of xdist."""
