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

from petra_graph.errors import Path, Problem, Where, shown

FORMAT = 2
"""The current format."""
_READS = "this version of petra-graph reads"


RENAMES: Mapping[tuple[str, ...], tuple[tuple[str, ...], int]] = {
    ("precision", "wire_dtype"): (("precision", "channel_dtype"), 2),
}
"""The new name of a key, and the first format that has it."""
SPLIT_BACKWARDS = "were measured, gained 0.03 nats at most, and were removed: a backward is one operation"
REMOVALS: Mapping[tuple[str, str], tuple[Any, str]] = {
    ("method", "split_backward"): (
        False,
        f'split backwards {SPLIT_BACKWARDS}; leave the key out, and set schedule = "auto" for the least delay at full speed',
    ),
    ("method", "max_staleness"): (
        None,
        "the bound was removed: set method.accumulation = k, with which a stage of depth d is (d - 1) / k updates late",
    ),
}
"""The value of a removed key that still says how things are, which is read as nothing (None: no value does), and what is said of another value."""


def without_removed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values without removed keys that say how things are, as every resolved specification of earlier versions does."""
    for (table, key), (holds, _) in REMOVALS.items():
        own = values.get(table)
        if isinstance(own, Mapping) and key in own and own[key] is holds:
            values = {**values, table: {name: value for name, value in own.items() if name != key}}
    return values


def format_problem(stated: Any, where: Where, values: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a text's `format`; None if it is the current one."""
    reads = f"{_READS} format {FORMAT}"
    if type(stated) is not int:
        return Problem(message=f"format must be an integer (got {shown(stated)})", hint=reads, where=where)
    if stated < 1:
        return Problem(message=f"format must be at least 1 (got {stated})", hint=reads, where=where)
    if stated > FORMAT:
        message = f"format {stated} is newer than {FORMAT}, which {_READS}"
        return Problem(message=message, hint="upgrade petra-graph", where=where)
    if stated < FORMAT:
        used = [
            f"rename {'.'.join(old)} to {'.'.join(new)}"
            for old, (new, since) in RENAMES.items()
            if since > stated and _has(values, old)
        ]
        message = f"format {stated} is older than {FORMAT}, which {_READS}"
        return Problem(message=message, hint=", then ".join([*used, f"set format = {FORMAT}"]), where=where)
    return None


def what_became_of(path: Path) -> str:
    """Return what became of a key that there was before; "" if there was none."""
    for removed, (_, hint) in REMOVALS.items():
        if removed == path:
            return hint
    for old, (new, since) in RENAMES.items():
        if old == path:
            return f"was renamed to {new[-1] if old[:-1] == new[:-1] else '.'.join(new)} in format {since}"
    return ""


def _has(value: Any, path: Path) -> bool:
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True
