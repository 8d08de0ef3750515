"""The versions of a specification's format: which one is read, what each newer one renamed, and what was removed.

A file may state `format = 2`; without it, a file is read as the current format. A format changes when a key is renamed
or means something else; a new key with a default changes none, and neither does the end of a feature: of its key, the value that
says how things are is read as nothing, and others are refused by name. Options of plugins are not part of a format: each plugin
has versions of its own.

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


@frozen(kw_only=True)
class Removal:
    """A key of a feature that was removed; `holds` is the value that still says how things are, and is read as nothing."""

    path: Path
    holds: Any
    hint: str


SPLIT_BACKWARDS = "were measured, gained 0.03 nats at most, and were removed: a backward is one operation"
REMOVALS = (
    Removal(
        path=("method", "split_backward"),
        holds=False,
        hint=f'split backwards {SPLIT_BACKWARDS}; leave the key out, and set schedule = "auto" for the least delay at full speed',
    ),
)


def without_removed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values without removed keys that say how things are, as every resolved specification of earlier versions does."""
    for table, key, holds in ((*one.path, one.holds) for one in REMOVALS):
        own = values.get(table)
        if isinstance(own, Mapping) and own.get(key) is holds:
            values = {**values, table: {name: value for name, value in own.items() if name != key}}
    return values


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


def what_became_of(path: Path) -> str:
    """Return what became of a key that there was before; "" if there was none."""
    for removal in REMOVALS:
        if removal.path == path:
            return removal.hint
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
