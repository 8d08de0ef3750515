"""Verdicts on plugins of a run, kept in the user's cache: a plugin is asked once for each digest of its code, options and shapes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import attrs
import torch
from attrs import frozen

from petra_graph.kinds.author_code import is_author_code
from petra_graph.kinds.plugin import Plugin
from petra_graph.units import plural
from petra_graph.version import __version__
from petra_graph_conformance.promise_report import Outcome

CACHE = "PETRA_GRAPH_CACHE"
"""The variable of the environment that names the folder of the cache."""
_INSTALLED = {"site-packages", "dist-packages"}


@frozen(kw_only=True)
class Verdict:
    """What a plugin was asked in a network, and what was found.

    Attributes:
        kept: the number of promises that it keeps.
        seconds: that it took.
        outcomes: those that are broken or doubtful.
        left: the promises that there was no time for.
        notes: warnings of what could not be tried.
    """

    kept: int
    seconds: float
    outcomes: Sequence[Outcome] = ()
    left: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        said = f"{plural(self.kept, 'promise')} kept"
        doubtful = ", ".join(one.promise for one in self.outcomes)
        return (
            f"{said}{doubtful and f', doubtful: {doubtful}'}{', not asked: ' * bool(self.left)}{', '.join(self.left)}"
        )

    @classmethod
    def read(cls, digest: str) -> Self | None:
        """Return the verdict of an earlier run, or None if no run has asked."""
        with suppress(OSError, ValueError, TypeError):
            values = json.loads((_folder() / f"{digest}.json").read_text())
            return cls(**{**values, "outcomes": [Outcome(**one) for one in values["outcomes"]]})
        return None

    def write(self, digest: str) -> None:
        """Keep the verdict; where the folder cannot be written to, the next run asks again."""
        with suppress(OSError):
            folder = _folder()
            folder.mkdir(parents=True, exist_ok=True)
            partial = folder / f"{digest}.{os.getpid()}.partial"
            partial.write_text(json.dumps(attrs.asdict(self)))
            partial.replace(folder / f"{digest}.json")


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE) or Path(home) / "petra-graph") / "verdicts"


def digest_of(plugin: Plugin, code: str, *parts: Any) -> str:
    """Return the digest of a plugin in a trial: of all code, its package's version, and the parts that say how it is tried."""
    version = metadata.version(plugin.distribution) if plugin.distribution else ""
    text = repr((__version__, torch.__version__, _kit(), code, plugin.label, version, plugin.declaration.build, parts))
    return sha256(text.encode()).hexdigest()


def code_in_use() -> str:
    """Return the digest of all modules that are imported and outside of folders of installed packages: a change in one may matter."""
    found = sha256()
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None) or "<"
        if _INSTALLED.isdisjoint(file.split(os.sep)) and is_author_code(file):  # noqa: PTH206  of 3,000 modules
            with suppress(OSError):
                found.update(name.encode() + Path(file).read_bytes())
    return found.hexdigest()


@cache
def _kit() -> str:
    """Return the digest of the kit's own code."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def in_record(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Return verdicts as a run's record has them, by plugin."""
    return {name: str(verdict) for name, verdict in verdicts.items()}
