"""What callers of the Python API give, looked at before anything is done: a wrong value is refused in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from petra_graph.api.views import Run
from petra_graph.errors import SpecError, kind_of, suggestion

if TYPE_CHECKING:
    from petra_graph.spec.model import Spec


def specification(given: Spec | str | Path | None) -> Spec | str:
    """Return a specification, or its file's name.

    Raises:
        TypeError: it is neither.
    """
    from petra_graph.spec.model import Spec

    if isinstance(given, str | Path):
        return str(given)
    if isinstance(given, Spec):
        return given
    raise TypeError(
        f"a specification or the name of its file is wanted (got {kind_of(given)}); of classes of your own, "
        'pg.make_spec(nodes=[{"name": "stem", "block": Stem}, ...], data={"name": Rows, "batch": 32}) makes one; '
        "for modules in a training loop of your own there is pg.reversible"
    )


def tables(nodes: object) -> list[object]:
    """Return the nodes of a network as a list.

    Raises:
        TypeError: they are no list.
    """
    if isinstance(nodes, Sequence) and not isinstance(nodes, str):
        return list(nodes)
    raise TypeError(
        f'nodes are a list of tables, as in [{{"name": "stem", "block": Stem}}, ...] (got {kind_of(nodes)})'
    )


def directory(run: Run | str | Path) -> str | Path:
    """Return a run's directory, or "latest".

    Raises:
        TypeError: it is no run.
    """
    if isinstance(run, Run):
        return run.directory
    if isinstance(run, str | Path):
        return run
    raise TypeError(f'a run, its directory or "latest" is wanted (got {kind_of(run)})')


def choice(what: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a word that is not allowed.

    Raises:
        SpecError: with those that are.
    """
    if value not in allowed:
        raise SpecError(f"{what} cannot be {value!r}", suggestion(str(value), allowed))
