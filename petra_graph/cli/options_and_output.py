"""What verbs share: a verb is a function, whose signature says its parameters; its answer goes to stdout, everything else to stderr."""

from __future__ import annotations

import gc
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from functools import wraps
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
from attrs import frozen

from petra_graph.errors import Problem, printable


def import_torch() -> None:
    """Import torch without the collector of garbage, which would look at all of it again and again: a quarter of a short verb's seconds."""
    if "torch" not in sys.modules:
        gc.disable()
        importlib.import_module("torch")
        gc.enable()
        gc.freeze()


def echo(text: str, *, err: bool = False) -> None:
    """Print lines to stdout, or to stderr; text from files and plugins cannot control the terminal."""
    with suppress(BrokenPipeError):  # whoever read it has gone; click would end the process with code 1
        click.echo(printable(text), file=sys.stderr if err else sys.stdout)


def print_problems(problems: Sequence[Problem]) -> None:
    """Print problems to stderr, with their number."""
    for line in [*map(str, problems), *[f"{len(problems)} problems"] * (len(problems) > 1)]:
        echo(line, err=True)


@frozen
class Option:
    """What an annotation says of an option of a verb beside its type: `split: Annotated[str, Option("Which samples.")] = "test"`."""

    help: str
    metavar: str | None = None
    names: Sequence[str] = ()  # without any that of the parameter, --split
    least: int | None = None  # the smallest value of a number


Sets = Annotated[
    tuple[str, ...],
    Option("Set one value of the spec, as in --set method.name=backprop; may be repeated.", "KEY=VALUE", ("--set",)),
]
Json = Annotated[bool, Option("Print JSON, and nothing else, to stdout.", names=("-j", "--json"))]


@frozen
class Answer:
    """What a verb has found, in JSON's types (None: nothing that JSON could say) and for people, and its exit code."""

    record: Any
    text: str
    code: int = 0


def verb(name: str | None = None) -> Callable[[Callable[..., Answer | None]], click.Command]:
    """Make a function a verb; its docstring is the help, and its signature says its parameters, as that of a plugin does.

        spec: Annotated[str, "SPEC"]               an argument, with its name in the help; a tuple takes several
        *, top: Annotated[int, Option("...")] = 3  an option; a flag if it is a bool, a choice if a Literal; a tuple may be repeated

    Each has the option --json, which a function may read, too. What prints to stdout before there is an answer prints to stderr.
    """

    def made(function: Callable[..., Answer | None]) -> click.Command:
        kinds = get_type_hints(function, include_extras=True)
        parameters = signature(function).parameters.values()
        by_us = [] if "as_json" in kinds else [Parameter("as_json", Parameter.KEYWORD_ONLY, default=False)]

        @wraps(function)
        def called(*, as_json: bool, **given: Any) -> int:
            with redirect_stdout(sys.stderr):
                found = function(**given) if by_us else function(as_json=as_json, **given)
            if found is None:
                return 0
            text = json.dumps(found.record, indent=2) if as_json and found.record is not None else found.text
            if text:
                echo(text)
            return found.code

        made_of = [_parameter(one, *get_args(kinds.get(one.name, Json))) for one in (*parameters, *by_us)]
        text = cleandoc(function.__doc__ or "")
        return click.Command(name or function.__name__, callback=called, params=made_of, help=text)

    return made


def _parameter(one: Parameter, kind: Any, said: str | Option) -> click.Parameter:
    """Return a parameter of a function as click has it; of a type or None, the type stands first."""
    parts, several = get_args(kind) or (kind,), get_origin(kind) is tuple
    about: dict[str, Any] = {"required": one.default is Parameter.empty}
    if not (about["required"] or several):
        about["default"] = one.default
    if get_origin(kind) is Literal:
        about["type"] = click.Choice(parts)
    elif parts[0] is Path:
        about["type"] = click.Path(path_type=Path)
    if isinstance(said, str):
        return click.Argument([one.name], metavar=said, nargs=-1 if several else 1, **about)
    if number := {int: click.IntRange, float: click.FloatRange}.get(parts[0]):
        about["type"] = number(said.least)
    names = said.names or [f"--{one.name.replace('_', '-')}"]
    about |= {"is_flag": kind is bool, "multiple": several, "show_default": one.default not in (None, Parameter.empty)}
    return click.Option([one.name, *names], help=said.help, metavar=said.metavar, **about)
