"""The versions of a specification's format: which one is read, and what each newer one renamed.

A file may state `format = 2`; without it, a file is read as the current format. A format changes when a key is renamed
or removed, or means something else; a new key with a default changes none. Options of plugins are not part of a format:
each plugin has versions of its own.

Decision: a file of an older format is refused, with the list of changes to make, and not converted. A conversion would
run a text that its author cannot see, and would have to be kept for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from petra_graph.errors import Path, Problem, Where, shown

FORMAT = 2
"""The current format."""
_READS = "this version of petra-graph reads"


@frozen(kw_only=True)
class Rename:
    """A key that has had another name since a format."""

    format: int
    """The first with the new name."""
    old: Path
    new: Path

    def __str__(self) -> str:
        return f"rename {_dotted(self.old)} to {_dotted(self.new)}"


RENAMES = (Rename(format=2, old=("precision", "wire_dtype"), new=("precision", "channel_dtype")),)
"""In the order of formats."""


def format_problem(stated: Any, where: Where, values: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a text's `format`; None where it is the current one."""
    reads = f"{_READS} format {FORMAT}"
    if type(stated) is not int:
        return Problem(message=f"format must be an integer (got {shown(stated)})", hint=reads, where=where)
    if stated < 1:
        return Problem(message=f"format must be at least 1 (got {stated})", hint=reads, where=where)
    if stated > FORMAT:
        hint = "upgrade petra-graph"
        return Problem(message=f"format {stated} is newer than {FORMAT}, which {_READS}", hint=hint, where=where)
    if stated < FORMAT:
        message = f"format {stated} is older than {FORMAT}, which {_READS}"
        return Problem(message=message, hint=_changes(stated, values), where=where)
    return None


def rename_hint(path: Path) -> str:
    """Return what became of a key that a former format had; "" where none had it."""
    for rename in RENAMES:
        if rename.old == path:
            same_table = rename.old[:-1] == rename.new[:-1]
            return f"was renamed to {rename.new[-1] if same_table else _dotted(rename.new)} in format {rename.format}"
    return ""


def _changes(stated: int, values: Mapping[str, Any]) -> str:
    """Return what to write so that a text of an older format is one of the current."""
    since = [rename for rename in RENAMES if rename.format > stated]
    used = [str(rename) for rename in since if _has(values, rename.old)]
    if used:
        return f"{', '.join(used)}, then set format = {FORMAT}"
    renamed = ", ".join(f"{_dotted(rename.old)} to {_dotted(rename.new)}" for rename in since)
    return f"set format = {FORMAT}; it renamed {renamed}, which this text does not have"


def _has(value: Any, path: Path) -> bool:
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)
