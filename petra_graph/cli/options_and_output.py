"""The part that verbs share: parameters, the import of torch, and results on stdout with problems on stderr."""

from __future__ import annotations

import gc
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from petra_graph.errors import Problem, listed, printable

T = TypeVar("T", bound=Callable[..., Any])
_STDOUT = "petra_graph.stdout"


def import_torch() -> None:
    """Import torch while Python collects no garbage, and have its collector pass over all of it from then on.

    The collector would look at everything that has been imported again and again, a sixth of the import's time.
    """
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        importlib.import_module("torch")
    finally:
        gc.enable()
    gc.freeze()


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines to stdout, or to stderr; text from files and plugins cannot control the terminal."""
    click.echo(printable(text), file=sys.stderr if err else results())


def results() -> TextIO:
    """Return where results go: stdout, of which --json leaves nothing to others."""
    context = click.get_current_context(silent=True)
    stdout: Any = sys.stdout if context is None else context.meta.get(_STDOUT, sys.stdout)
    return stdout  # type: ignore[no-any-return]  # click says nothing of what a context keeps


def print_problems(problems: Sequence[Problem]) -> None:
    """Print problems to stderr, with their number."""
    for text in listed(problems):
        echo(text, err=True)
    if len(problems) > 1:
        echo(f"{len(problems)} problems", err=True)


def print_json(value: Any) -> None:
    echo(json_text(value))


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2)


def write_result(text: str, output: Path | None, *, coloured: bool = False) -> None:
    """Write a text to a file, and print its name; or print it, with its colours and nothing else that controls a terminal."""
    if output is None:
        click.echo((text if coloured else printable(text)).rstrip("\n"), file=results())
        return
    from petra_graph.record.run_directory import write_output

    write_output(output, text if text.endswith("\n") else f"{text}\n")
    echo(str(output))


def table_text(rows: Sequence[Sequence[str]], indent: int = 0) -> str:
    """Write rows in aligned columns; empty columns are left out, and a row is a line."""
    cells = [[printable(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width) for row in cells)
    return "\n".join(f"{' ' * indent}{line.rstrip()}" for line in lines)


def output_width(in_a_pipe: int = 100_000) -> int:
    """Return the characters of a line of stdout: what COLUMNS says, or else the terminal, or else `in_a_pipe`."""
    return shutil.get_terminal_size((in_a_pipe, 24)).columns


set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one value of the spec, as in --set method.name=backprop; may be repeated.",
)


def output_option(text: str, **more: Any) -> Callable[[T], T]:
    """Return the option `--output`, a file."""
    return click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help=text, **more)


def _nothing_but_json(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
    """Let everything else that prints to stdout, such as code of plugins, print to stderr."""
    if value in {True, "json"} and _STDOUT not in ctx.meta:
        ctx.meta[_STDOUT] = sys.stdout
        ctx.with_resource(redirect_stdout(sys.stderr))
    return value


_JSON: Any = {"callback": _nothing_but_json, "help": "Print JSON, and nothing else, to stdout."}
json_option = click.option("-j", "--json", "as_json", is_flag=True, **_JSON)


def format_option(forms: Sequence[str], text: str) -> Callable[[T], T]:
    """Return the option `--format`, and `-j` for its value json; None where neither is given."""

    def add(command: T) -> T:
        command = click.option("-j", "--json", "form", flag_value="json", default=None, **_JSON)(command)
        choice = click.Choice([*forms, "json"])
        return click.option("--format", "form", type=choice, callback=_nothing_but_json, help=text)(command)

    return add
