"""What the distributions of this project's folder `plugins/` add to the core, by name.

The core asks only where a name is missing, so that it can say which distribution has it. What is installed is found by
entry points alone.
"""

from __future__ import annotations

from collections.abc import Mapping

OF_VERBS: Mapping[str, str] = {}
"""The distribution of each verb of the command line."""
OF_TABLES: Mapping[str, str] = {"optimizer.delay": "petra-graph-delay"}
"""The distribution of each table of a spec."""
OF_NAMES: Mapping[str, str] = {}
"""The distribution of each name of the package `petra_graph`."""


def how_to_install(distribution: str) -> str:
    return f"install {distribution}: in a clone of petra-graph, `pip install ./plugins/{distribution}`"
