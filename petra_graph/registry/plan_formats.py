"""Formats of plans that other distributions write, by entry points of the group `petra_graph.plan_formats`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from petra_graph.errors import PluginError, SpecError
from petra_graph.registry.discovery import PLAN_FORMATS, Entry, scan
from petra_graph.registry.first_party import OF_PLAN_FORMATS, how_to_install

WriteDocument = Callable[[Mapping[str, Any]], str]


def added_formats() -> Mapping[str, Entry]:
    """Return the entry point of each format; if several distributions have one, the first in alphabetical order."""
    entries = sorted(scan()[0], key=lambda entry: entry.distribution, reverse=True)
    return {entry.name: entry for entry in entries if entry.group == PLAN_FORMATS}


def writer_of(form: str) -> WriteDocument:
    """Import what writes a format.

    Raises:
        SpecError: no distribution has the format; the message says which of ours has it.
        PluginError: it cannot be imported.
    """
    entries = added_formats()
    if (entry := entries.get(form)) is None:
        if form in OF_PLAN_FORMATS:
            raise SpecError(f"the format {form!r} of plans is not installed", how_to_install(OF_PLAN_FORMATS[form]))
        raise SpecError(f"there is no format {form!r} of plans", f"allowed: {', '.join(['text', 'json', *entries])}")
    try:
        found: WriteDocument = entry.load()
    except Exception as error:
        message = f"{entry.distribution}: the format {form!r} ({entry.target}) cannot be imported"
        raise PluginError(f"{message}: {type(error).__name__}: {error}", "update it, or remove it") from error
    return found
