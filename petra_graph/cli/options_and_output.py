"""The part that verbs share: parameters, the import of torch, and results on stdout with problems on stderr."""

from __future__ import annotations

import gc
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TextIO, get_args, get_origin, get_type_hints

import click
from attrs import frozen

from petra_graph.errors import Problem, listed, printable

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


def _nothing_but_json(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
    """Let everything else that prints to stdout, such as code of plugins, print to stderr."""
    if value in {True, "json"} and _STDOUT not in ctx.meta:
        ctx.meta[_STDOUT] = sys.stdout
        ctx.with_resource(redirect_stdout(sys.stderr))
    return value


@frozen
class Option:
    """What an annotation says of an option of a verb beside its type: `split: Annotated[str, Option("Which samples.")] = "test"`."""

    help: str
    metavar: str | None = None
    names: Sequence[str] = ()
    """Default: that of the parameter, --split."""
    least: int | None = None
    """The smallest value of a number."""
    type: click.ParamType[Any] | None = None
    """Default: as the annotation says."""


Sets = Annotated[
    tuple[str, ...],
    Option("Set one value of the spec, as in --set method.name=backprop; may be repeated.", "KEY=VALUE", ("--set",)),
]
Json = Annotated[bool, Option("Print JSON, and nothing else, to stdout.", names=("-j", "--json"))]


def verb(name: str | None = None) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make a function a verb; its signature says all of its parameters, as that of a plugin does.

        spec: Annotated[str, "SPEC"]               an argument, with its name in the help; a tuple takes several
        *, top: Annotated[int, Option("...")] = 3  an option; a flag if it is a bool, a choice if a Literal; a tuple may be repeated

    The function returns the exit code, None as 0; its docstring is the help.
    """

    def made(function: Callable[..., int | None]) -> click.Command:
        hints = get_type_hints(function, include_extras=True)
        parameters = [_parameter(one, *get_args(hints[one.name])) for one in signature(function).parameters.values()]
        text = cleandoc(function.__doc__ or "")
        return click.Command(name or function.__name__, callback=function, params=parameters, help=text)

    return made


def _parameter(one: Parameter, kind: Any, said: str | Option) -> click.Parameter:
    """Return a parameter of a function as click has it."""
    plain, *_ = [part for part in get_args(kind) if part is not NoneType] if type(None) in get_args(kind) else [kind]
    several, missing = get_origin(plain) is tuple, one.default is Parameter.empty
    least = None if isinstance(said, str) else said.least
    kinds = {Path: click.Path(path_type=Path), int: click.IntRange(min=least), float: click.FloatRange(min=least)}
    form: Any = click.Choice(get_args(plain)) if get_origin(plain) is Literal else kinds.get(plain)
    default = {} if missing or several else {"default": one.default}
    if isinstance(said, str):
        return click.Argument(
            [one.name], metavar=said, type=form, required=missing, nargs=-1 if several else 1, **default
        )
    return click.Option(
        [one.name, *(said.names or [f"--{one.name.replace('_', '-')}"])],
        help=said.help,
        metavar=said.metavar,
        type=said.type or form,
        is_flag=plain is bool,
        multiple=several,
        show_default=bool(default and one.default),
        required=missing,
        callback=_nothing_but_json if one.name in {"as_json", "form"} else None,
        **default,
    )
