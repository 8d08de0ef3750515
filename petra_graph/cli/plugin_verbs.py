"""Verbs that other distributions add, by entry points of the group `petra_graph.verbs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from petra_graph.errors import PetraGraphError, PluginError, kind_of
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.discovery import VERBS, Entry, scan


def _entries() -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in sorted(scan()[0], key=lambda entry: (entry.name, entry.distribution)):
        if entry.group == VERBS:
            found.setdefault(entry.name, []).append(entry)
    return found


def names() -> list[str]:
    return list(_entries())


def command(name: str, found: Mapping[str, Sequence[Entry]] | None = None) -> click.Command | None:
    """Import a verb; None: no distribution has it.

    Args:
        name: of the verb.
        found: all verbs; None: look for them.

    Raises:
        PluginError: several distributions have it, or it cannot be imported, or is no click command.
    """
    entries = (_entries() if found is None else found).get(name)
    if entries is None:
        return None
    if len(entries) > 1:
        owners = ", ".join(entry.distribution for entry in entries)
        raise PluginError(f"the verb {name!r} is in {len(entries)} distributions: {owners}", hint="remove one of them")
    [entry] = entries
    with author_code(f"{entry.distribution}: the verb {name!r} ({entry.target}) cannot be imported"):
        loaded = entry.load()
    if not isinstance(loaded, click.Command):
        message = f"{entry.distribution}: the verb {name!r} ({entry.target}) must be a click command"
        raise PluginError(f"{message}, and is {kind_of(loaded)}", hint="its author must mend it")
    return loaded


def lines_of_help() -> Iterator[tuple[str, str]]:
    """Yield the verbs and the first lines of their helps."""
    verbs = _entries()
    for name in verbs:
        try:
            found = command(name, verbs)
            yield name, "" if found is None else found.get_short_help_str(limit=70)
        except PetraGraphError as error:
            yield name, str(error.problems[0].message)
