"""What other distributions do and have for the core, by entry points, and which of ours has what is missing.

joint    work that the core hands over when a command or a specification asks for it, of the group `petra_graph.joints`:
         sweep    `run --sweep`, `--seeds`, and a sweep that is resumed
         vary     `plan --vary`
         probe    the table `[probe]`: a `training.run_probe.RunProbe`
name     an attribute of the package `petra_graph`, of the group `petra_graph.names`
"""

from __future__ import annotations

from typing import Any

from petra_graph.errors import SpecError
from petra_graph.registry.discovery import JOINTS, NAMES, entries_of


def not_installed(name: str, asked: str) -> tuple[str, str]:
    """Return the message and the hint about something that was asked for, if no installed distribution does it."""
    return f"no installed distribution does what {asked} asks for", f"it needs the entry point {name!r} of {JOINTS}"


def joint(name: str, asked: str) -> Any:
    """Import what does the work; of several distributions, that of the first in alphabetical order.

    Args:
        name: as in the table above.
        asked: what a user has written, for the message.

    Raises:
        SpecError: no installed distribution does it.
        PluginError: it cannot be imported.
    """
    entry = entries_of(JOINTS).get(name)
    if entry is None:
        raise SpecError(*not_installed(name, asked))
    return entry.load_as("the joint")


def added_name(module: str, name: str) -> Any:
    """Import what a name of the package stands for.

    Raises:
        AttributeError: no distribution has the name.
    """
    if (entry := entries_of(NAMES).get(name)) is not None:
        return entry.load()
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
