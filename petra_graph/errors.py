"""The errors that a user can cause or mend; all problems of one input are raised together.

Packages below the specification have no files and lines: they give a `path` into it, which the package that owns the source turns into a `Where`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ClassVar

from attrs import evolve, field, frozen

Path = tuple[str | int, ...]  # a path into a specification: ("graph", "node", 2, "block")


@frozen(kw_only=True)
class Where:
    """A position in a source text; lines count from 1."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file.replace("\n", "\\n") + ("" if self.line is None else f":{self.line}")


@frozen(kw_only=True)
class Problem:
    """A mistake: the rule and the value that came, then the remedy."""

    message: str  # without a full stop
    hint: str = ""  # what to do
    path: Path = ()  # of the value; a plugin's counts from its own options, as in ("root",)
    where: Where | None = None  # its position in a text, which the owner of that text adds

    def __str__(self) -> str:
        """Render as `file:line: message` and the hint."""
        lines = [f"{self.where}: {self.message}" if self.where else self.message]
        lines += [f"    help: {self.hint}"] * bool(self.hint)
        # Within a text, a line begins further right than every problem and hint, so that a file's name cannot pass for one.
        return printable("\n".join(line.replace("\n", "\n      ") for line in lines))


def printable(text: str) -> str:
    """Return a text without the power to control a terminal or to change the order in which its characters are read; line ends and tabs stay."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def raised_text(error: BaseException) -> str:
    """Return an exception in one line, with its notes: who was called, where the code of a plugin raised it."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}" + (f" ({notes})" if notes else "")


class PetraGraphError(Exception):
    """Base of every error that is reported without a traceback."""

    exit_code: ClassVar[int] = 1

    def __init__(self, problems: Iterable[Problem] | Problem | str, hint: str = "", path: Path = ()) -> None:
        if isinstance(problems, str):
            problems = Problem(message=problems, hint=hint, path=path)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class RunFailed(PetraGraphError):
    """Training started and failed."""

    summary: Mapping[str, Any] | None = None  # the run's, where there is a run directory


class SpecError(PetraGraphError):
    """The specification, or the command line around it, is wrong."""

    exit_code = 2


class NoFeasiblePlan(PetraGraphError):
    """The specification is right, but no placement satisfies its limits."""

    exit_code = 3


class PluginError(PetraGraphError):
    """A plugin cannot be found, loaded or trusted."""

    exit_code = 4


class RunFailedByPlugin(PluginError, RunFailed):
    """Training started, and a plugin broke its contract."""

    exit_code = 4


@frozen
class placed:  # noqa: N801  it is used like a function: `with placed(...):`
    """Begin the messages of a PluginError or RunFailed that is raised inside with a place of the network: a stage, a node."""

    where: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, PluginError | RunFailed):
            kind = PluginError if isinstance(error, PluginError) else RunFailed
            raise kind([evolve(one, message=f"{self.where}, {one.message}") for one in error.problems]) from error


@contextmanager
def at_path(*path: str | int) -> Iterator[None]:
    """Give the problems of a SpecError or PluginError that is raised inside this path, where they have none: the place that names the plugin."""
    try:
        yield
    except (SpecError, PluginError) as error:
        kind = SpecError if isinstance(error, SpecError) else PluginError
        raise kind([one if one.path or one.where else evolve(one, path=path) for one in error.problems]) from error


@frozen
class Interrupted(Exception):
    """The run stopped between two operations, as a signal requested."""

    exit_code: ClassVar[int] = 130
    signal_name: str = field(default="SIGINT")


@frozen
class FailedOnAnotherProcess(Exception):
    """The run has failed, and another of its processes reports the cause."""

    exit_code: int = 1


def suggestion(word: str, allowed: Iterable[str]) -> str:
    """Return a hint: the allowed word that is likely meant by `word`, then all allowed words."""
    names = sorted(allowed)
    likely = get_close_matches(word, names, n=1)
    listing = f"allowed: {', '.join(names) if names else 'nothing'}"
    return f"did you mean {likely[0]!r}? {listing}" if likely else listing


def kind_of(value: object) -> str:
    """Return what a Python value is, for messages."""
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    return f"an object of class {type(value).__qualname__}"


def shown(value: Any) -> str:
    """Return a value as TOML text, for messages."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{shown_key(key)} = {shown(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return str(value)


def shown_key(key: str) -> str:
    """Return a key as TOML text."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else shown(key)
