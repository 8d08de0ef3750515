"""Work that the core hands to another distribution when a command or a specification asks for it: entry points of the group `petra_graph.joints`.

sweep    `run --sweep`, `--seeds`, and a sweep that is resumed
vary     `plan --vary`
probe    the table `[probe]`: a `training.run_probe.RunProbe`
export   `petra_graph.Run.export`; so with `predict` and `sample`
"""

from __future__ import annotations

from typing import Any

from petra_graph.errors import SpecError
from petra_graph.registry.discovery import JOINTS, entries_of
from petra_graph.registry.first_party import OF_JOINTS, how_to_install


def not_installed(name: str, asked: str) -> tuple[str, str]:
    """Return the message and the hint about something that was asked for, if no installed distribution does it."""
    return f"{asked} needs {OF_JOINTS[name]}, which is not installed", how_to_install(OF_JOINTS[name])


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
