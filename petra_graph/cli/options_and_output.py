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
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from petra_graph.errors import Problem, listed, printable

if TYPE_CHECKING:
    from petra_graph.inference.saved_run import SavedRun

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


def write_result(text: str, output: Path | None, *, coloured: bool = False) -> None:
    """Write a text to a file, and print its name; or print it, with its colours and nothing else that controls a terminal."""
    if output is None:
        click.echo((text if coloured else printable(text)).rstrip("\n"), file=results())
        return
    from petra_graph.record.run_directory import write_output

    write_output(output, text if text.endswith("\n") else f"{text}\n")
    echo(str(output))


def json_text(value: Any) -> str:
    """Return a value as JSON that people can read too."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if printable(text) == text else json.dumps(value, indent=2)


def print_table(rows: Sequence[Sequence[str]], indent: int = 0) -> None:
    """Print rows in aligned columns; empty columns are left out, and a row is a line."""
    click.echo(table_text(rows, indent), nl=False, file=results())


def table_text(rows: Sequence[Sequence[str]], indent: int = 0) -> str:
    cells = [[printable(cell).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width) for row in cells)
    return "".join(f"{' ' * indent}{line.rstrip()}\n" for line in lines)


def output_width(in_a_pipe: int = 100_000) -> int:
    """Return the characters of a line of stdout: what COLUMNS says, or else the terminal, or else `in_a_pipe`."""
    return shutil.get_terminal_size((in_a_pipe, 24)).columns


def problem_record(problem: Problem) -> dict[str, Any]:
    return {
        "message": problem.message,
        "hint": problem.hint,
        "path": list(problem.path),
        **{key: getattr(problem.where, key, None) for key in ("file", "line")},
    }


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


def _nothing_but_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    """Let everything else that prints to stdout, such as code of plugins, print to stderr."""
    if value:
        ctx.meta[_STDOUT] = sys.stdout
        ctx.with_resource(redirect_stdout(sys.stderr))
    return value


json_option = click.option(
    "-j", "--json", "as_json", is_flag=True, callback=_nothing_but_json, help="Print JSON, and nothing else, to stdout."
)
weights_option = click.option(
    "--weights",
    metavar="WHICH",
    help="Weights of a checkpoint (latest, best, or the number of its next forward), or a file. Default: the run's final weights.",
)
device_option = click.option(
    "--device", default="cpu", show_default=True, metavar="NAME", help='Where to compute, as in "cuda:0".'
)


def open_run(run: str, overrides: Sequence[str] = ()) -> SavedRun:
    """Import torch, open a run, and say on stderr what its network computes otherwise than in the training; errors as of `SavedRun.open`."""
    import_torch()
    from petra_graph.inference.saved_run import SavedRun

    opened = SavedRun.open(run, overrides)
    warn_of_changes(opened.changed)
    return opened


def warn_of_changes(changed: Sequence[str]) -> None:
    """Print what of a run's code and data is not as it was in its training."""
    for text in changed:
        echo(f"warning: changed since the training: {text}", err=True)
