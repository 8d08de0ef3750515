"""Formats of plans that other distributions write, by entry points of the group `petra_graph.plan_formats`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from petra_graph.errors import SpecError
from petra_graph.registry.discovery import PLAN_FORMATS, entries_of
from petra_graph.registry.first_party import OF_PLAN_FORMATS, how_to_install

WriteDocument = Callable[[Mapping[str, Any]], str]


def writer_of(form: str) -> WriteDocument:
    """Import what writes a format.

    Raises:
        SpecError: no distribution has the format; the message says which of ours has it.
        PluginError: it cannot be imported.
    """
    entries = entries_of(PLAN_FORMATS)
    if (entry := entries.get(form)) is None:
        if form in OF_PLAN_FORMATS:
            raise SpecError(f"the format {form!r} of plans is not installed", how_to_install(OF_PLAN_FORMATS[form]))
        raise SpecError(f"there is no format {form!r} of plans", f"allowed: {', '.join(['text', 'json', *entries])}")
    found: WriteDocument = entry.load_as("the format")
    return found
