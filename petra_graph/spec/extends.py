"""A specification together with those that it extends.

`extends` names one file or several, relative to the file that says it; later ones lie over earlier ones, and the file
itself lies over all of them.
"""

from __future__ import annotations

import os
from typing import Any

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.spec.merge import Layers, merge, single
from petra_graph.spec.source import STDIN, Source, read_source


def read_layers(path: str) -> Layers:
    """Read a specification and all that it extends.

    Raises:
        SpecError: a file cannot be read, is not TOML, or extends itself.
    """
    return _extended(read_source(path), path, ())


def _extended(source: Source, path: str, above: tuple[str, ...]) -> Layers:
    layers = single(source)
    chain = (*above, os.path.realpath(path))
    bases = [_base(source, path, index, name, chain) for index, name in enumerate(_names(source))]
    problems = [problem for base in bases if isinstance(base, SpecError) for problem in base.problems]
    if problems:
        raise SpecError(problems)
    below = [base for base in bases if isinstance(base, Layers)]
    if not below:
        return layers
    whole = below[0]
    for base in below[1:]:
        whole = merge(whole, base)
    return merge(whole, layers)


def _base(source: Source, path: str, index: int, name: str, chain: tuple[str, ...]) -> Layers | SpecError:
    """Return a base's layers, or what is wrong with it, so that all bases are heard."""
    folder = "" if path == STDIN else os.path.dirname(path)  # noqa: PTH120  keeps the path as the user wrote it
    base = os.path.normpath(os.path.join(folder, os.path.expanduser(name)))  # noqa: PTH118, PTH111  ditto
    where = source.where(("extends", index) if isinstance(source.values["extends"], list) else ("extends",))
    if os.path.realpath(base) in chain:
        return SpecError(
            Problem(
                message=f"extends {shown(name)}, which extends this file again" if len(chain) > 1 else "extends itself",
                hint="a chain of extends must end",
                where=where,
            )
        )
    missing = None
    if not os.path.isfile(base):  # noqa: PTH113  a string until here
        missing = Problem(
            message=f"extends {shown(name)}, but there is no such file",
            hint=f"looked for {base!r}; the name is relative to the file that says it",
            where=where,
        )
    try:
        return _extended(read_source(base, stated=missing), base, chain)
    except SpecError as error:
        return error


def _names(source: Source) -> list[str]:
    given: Any = source.values.get("extends", [])
    names = given if isinstance(given, list) else [given]
    problems = [
        Problem(
            message=f"extends must be a file's name or a list of them (got {shown(name)})",
            where=source.where(("extends", index) if isinstance(given, list) else ("extends",)),
        )
        for index, name in enumerate(names)
        if not isinstance(name, str) or not name
    ]
    if problems:
        raise SpecError(problems)
    return names
