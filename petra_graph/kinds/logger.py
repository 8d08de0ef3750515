"""A logger: it receives the values of `metrics.jsonl` as the run records them, and keeps them elsewhere.

Loggers live in the process that leads, which hosts the head of the first replica, and are called in the order in which
the specification lists them, after the line is in `metrics.jsonl`. They change nothing of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from petra_graph.errors import Problem
from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind, called


@frozen(kw_only=True)
class LoggerDeclaration(Declaration):
    """A logger; `build` names a function (options, RunInfo) -> Logger.

    Attributes:
        requires: the module of another package, without which the logger cannot work; "" where there is no such module.
        install: the command that installs that package.
    """

    requires: str = ""
    install: str = ""


@frozen(kw_only=True)
class RunInfo:
    """The run that a logger is built for.

    Attributes:
        directory: of the run; where the run is resumed, `metrics.jsonl` in it ends at the checkpoint.
        name: of the run.
        spec: the resolved specification, in TOML's types.
        resumed_at: the number of micro-batches before the checkpoint of a resumed run; later events will come a second time.
            None: the run begins.
    """

    directory: Path
    name: str
    spec: Mapping[str, Any]
    resumed_at: int | None


class Logger(Protocol):
    """A place for a run's values."""

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Keep values by name, such as "train/loss"; they may be infinite or NaN.

        Args:
            epoch: counted from 1.
            step: micro-batches since the run's start.
            values: what is recorded at once.
        """

    def close(self) -> None:
        """Write what is held back; nothing is recorded afterwards."""


def missing_package(plugin: Plugin) -> Problem | None:
    """Return the problem of a logger whose package is not installed; this imports nothing."""
    declaration = plugin.declaration
    if not isinstance(declaration, LoggerDeclaration) or not declaration.requires:
        return None
    if find_spec(declaration.requires) is not None:
        return None
    hint = declaration.install or f"install the package that has {declaration.requires!r}"
    return Problem(message=f"{plugin} needs the module {declaration.requires!r}, which is not installed", hint=hint)


LOGGER = PluginKind(
    noun="logger",
    group="petra_graph.loggers",
    table="logger",
    several=True,
    declaration=LoggerDeclaration,
    form=called("options, run", "Logger"),
)
