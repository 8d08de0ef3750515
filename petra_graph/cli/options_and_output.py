"""What verbs share: a verb is a function, whose signature says its parameters; results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from functools import wraps
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
from attrs import frozen

from petra_graph.errors import Problem, printable

_STDOUT = "petra_graph.stdout"


# --- output ---


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines to stdout, or to stderr; text from files and plugins cannot control the terminal."""
    context = click.get_current_context(silent=True)
    stdout: Any = sys.stdout if context is None else context.meta.get(_STDOUT, sys.stdout)
    with suppress(BrokenPipeError):  # whoever read it has gone; click would end the process with code 1
        click.echo(printable(text), file=sys.stderr if err else stdout)


def print_problems(problems: Sequence[Problem]) -> None:
    """Print problems to stderr, with their number."""
    for line in [*map(str, problems), *[f"{len(problems)} problems"] * (len(problems) > 1)]:
        echo(line, err=True)


def print_json(value: Any) -> None:
    echo(json.dumps(value, indent=2))


# --- verbs ---


@frozen
class Option:
    """What an annotation says of an option of a verb beside its type: `split: Annotated[str, Option("Which samples.")] = "test"`."""

    help: str
    metavar: str | None = None
    names: Sequence[str] = ()
    """Default: that of the parameter, --split."""
    least: int | None = None
    """The smallest value of a number."""


Sets = Annotated[
    tuple[str, ...],
    Option("Set one value of the spec, as in --set method.name=backprop; may be repeated.", "KEY=VALUE", ("--set",)),
]
Json = Annotated[bool, Option("Print JSON, and nothing else, to stdout.", names=("-j", "--json"))]


@frozen
class Answer:
    """What a verb has found, in JSON's types and for people, and its exit code."""

    record: Any
    text: str
    code: int = 0


def verb(name: str | None = None) -> Callable[[Callable[..., Answer | int | None]], click.Command]:
    """Make a function a verb; its docstring is the help, and its signature says its parameters, as that of a plugin does.

        spec: Annotated[str, "SPEC"]               an argument, with its name in the help; a tuple takes several
        *, top: Annotated[int, Option("...")] = 3  an option; a flag if it is a bool, a choice if a Literal; a tuple may be repeated

    It returns an exit code, None as 0, or an `Answer`, and then has the option --json. What else prints to stdout meanwhile prints to stderr.
    """

    def made(function: Callable[..., Answer | int | None]) -> click.Command:
        hints, parameters = get_type_hints(function, include_extras=True), [*signature(function).parameters.values()]
        if answers := hints.get("return") is Answer:
            parameters.append(Parameter("as_json", Parameter.KEYWORD_ONLY, default=False))

        @wraps(function)
        def called(**given: Any) -> int | None:
            click.get_current_context().meta.setdefault(_STDOUT, sys.stdout)
            as_json = given.pop("as_json") if answers else False
            with redirect_stdout(sys.stderr):
                found = function(**given)
            if not isinstance(found, Answer):
                return found
            if as_json:
                print_json(found.record)
            else:
                echo(found.text)
            return found.code

        made_of = [_parameter(one, *get_args(hints.get(one.name, Json))) for one in parameters]
        text = cleandoc(function.__doc__ or "")
        return click.Command(name or function.__name__, callback=called, params=made_of, help=text)

    return made


def _parameter(one: Parameter, kind: Any, said: str | Option) -> click.Parameter:
    """Return a parameter of a function as click has it."""
    plain, *_ = [part for part in get_args(kind) if part is not NoneType] if type(None) in get_args(kind) else [kind]
    several, missing = get_origin(plain) is tuple, one.default is Parameter.empty
    default = {} if missing or several else {"default": one.default}
    if isinstance(said, str):
        form = click.Path(path_type=Path) if plain is Path else None
        count = -1 if several else 1
        return click.Argument([one.name], metavar=said, type=form, required=missing, nargs=count, **default)
    kinds = {Path: click.Path(path_type=Path), int: click.IntRange(said.least), float: click.FloatRange(said.least)}
    return click.Option(
        [one.name, *(said.names or [f"--{one.name.replace('_', '-')}"])],
        help=said.help,
        metavar=said.metavar,
        type=click.Choice(get_args(plain)) if get_origin(plain) is Literal else kinds.get(plain),
        is_flag=plain is bool,
        multiple=several,
        show_default=bool(default and one.default),
        required=missing,
        **default,
    )
