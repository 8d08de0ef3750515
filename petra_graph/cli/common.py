"""The part that verbs share: parameters, and results on stdout with problems on stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from petra_graph.errors import Problem, suggestion
from petra_graph.registry.registry import SHORT_GROUPS


def print_problems(problems: Sequence[Problem]) -> None:
    """Print problems to stderr, with their number."""
    for problem in problems:
        click.echo(str(problem), err=True)
    if len(problems) > 1:
        click.echo(f"{len(problems)} problems", err=True)


def print_json(value: Any) -> None:
    """Print a value as JSON to stdout."""
    click.echo(json_text(value))


def json_text(value: Any) -> str:
    """Return a value as JSON for people and programs."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def print_table(rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """Print rows in aligned columns; empty columns are left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(f"{indent}{line.rstrip()}")


def problem_record(problem: Problem) -> dict[str, Any]:
    """Return a problem as a JSON value."""
    return {
        "message": problem.message,
        "hint": problem.hint,
        "path": list(problem.path),
        **{key: getattr(problem.where, key, None) for key in ("file", "line", "column", "text")},
    }


set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one value of the spec, as in --set method.name=backprop; may be repeated.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")


def full_group(group: str) -> str:
    """Return the entry-point group of a short name.

    Raises:
        click.UsageError: there is none.
    """
    if group not in SHORT_GROUPS:
        raise click.UsageError(f"No such group {group!r}: {suggestion(group, SHORT_GROUPS)}")
    return SHORT_GROUPS[group]
