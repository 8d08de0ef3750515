"""What is swept by runs or varied by plans, and all combinations of its values.

    run --sweep optimizer.options.lr=0.1,0.03 --seeds 3
    plan --vary partition.memory=4GiB,8GiB --vary data.batch=32,64

An axis is a key with its values; `--seeds` is the axis of `run.seed`. Combinations that differ in `run.seed` alone are a
group. The last axis varies first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from attrs import evolve, frozen

from petra_graph.errors import Problem, SpecError, Where, kind_of, shown
from petra_graph.report.run_groups import in_words
from petra_graph.spec.overrides import Override, assignments, parse_override

_SEED = ("run", "seed")
_LONGEST_FOLDER = 60
"""Characters of a folder's name that say what a run has of the swept values."""


class Swept(str):
    """One of the values of a `--sweep`; messages name the option."""

    __slots__ = ()
    option = "--sweep"


class Varied(Swept):
    """One of the values of a `--vary`."""

    __slots__ = ()
    option = "--vary"


@frozen(kw_only=True)
class Axis:
    """A key with the values that a sweep gives it."""

    given: str
    """As messages name it."""
    values: tuple[Override, ...]
    continues: bool = False
    """Whether it begins at the value that all runs have otherwise."""

    @property
    def keys(self) -> tuple[str, ...]:
        return self.values[0].keys


@frozen(kw_only=True)
class Combination:
    """What one run of a sweep has of the swept values."""

    overrides: tuple[str, ...]
    group: int
    """The number of its group, counted from 0."""
    words: str
    group_words: str
    folder: str


def axes_of_texts(texts: Iterable[str], kind: type[Swept] = Swept) -> list[Axis]:
    """Return the axes that KEY=VALUE,VALUE describe; commas in quotes, lists and tables part no values.

    Args:
        kind: of the values, which knows the option that gave them.

    Raises:
        SpecError: a key or a value is missing, is no TOML, or a value stands there twice; the error has all problems.
    """
    axes, problems = list[Axis](), list[Problem]()
    for text in texts:
        key, _, values = text.partition("=")
        written = [kind(f"{key}={value}") for value in _split_values(values)] if "=" in text else [kind(text)]
        try:
            axes.append(_make_axis(f"{kind.option} {text}", written))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    return axes


def axes_of_values(values: Mapping[str, Sequence[Any]]) -> list[Axis]:
    """Return the axes of values by key, as Python code has them.

    Raises:
        TypeError: the values of a key are not a list.
        SpecError: as `axes_of_texts`.
    """
    for key, several in values.items():
        if not isinstance(several, Sequence) or isinstance(several, str) or not several:
            raise TypeError(f"the values of {key!r} are a list of at least one (got {kind_of(several)})")
    return [
        _make_axis(f'values["{key}"]', [text for value in several for text in assignments({key: value})])
        for key, several in values.items()
    ]


def seed_axis(first: int, seeds: int) -> Axis:
    """Return the axis of the seeds first, first + 1, ..., first + seeds - 1."""
    axis = _make_axis(f"--seeds {seeds}", [Swept(f"run.seed={first + place}") for place in range(seeds)])
    return evolve(axis, continues=True)


def combinations(axes: Sequence[Axis], fixed: Iterable[str] = ()) -> list[Combination]:
    """Return all combinations of the axes' values.

    Args:
        axes: at least one.
        fixed: what is set in all runs, KEY=VALUE.

    Raises:
        SpecError: a key is swept twice, or set as well; the error has all problems.
    """
    if problems := list(_clashes(axes, [parse_override(text) for text in fixed])):
        raise SpecError(problems)
    chosen = list(product(*(axis.values for axis in axes)))
    groups: dict[tuple[str, ...], int] = {}
    names = _name_combinations(axes, chosen)
    bare = [place for place, axis in enumerate(axes) if axis.keys != _SEED]
    group_names = _name_combinations(
        [axes[place] for place in bare], [[values[place] for place in bare] for values in chosen]
    )
    found = []
    for place, (values, words, group_words) in enumerate(zip(chosen, names, group_names, strict=True), start=1):
        of_group = tuple(value.text for value in values if value.keys != _SEED)
        slug = re.sub(r"[^\w.=+-]+", "-", words)[:_LONGEST_FOLDER].rstrip("-.")
        found.append(
            Combination(
                overrides=tuple(value.text for value in values),
                group=groups.setdefault(of_group, len(groups)),
                words=words,
                group_words=group_words or "as it is",
                folder=f"{place:0{len(str(len(chosen)))}}-{slug}",
            )
        )
    return found


def _make_axis(given: str, texts: Iterable[str]) -> Axis:
    values: list[Override] = []
    for text in texts:
        try:
            one = parse_override(text)
        except SpecError as error:
            raise SpecError([_at(given, problem.message, problem.hint) for problem in error.problems]) from None
        if any(one.value == other.value for other in values):
            raise SpecError(_at(given, f"{shown(one.value)} stands there twice", "leave one of them out"))
        values.append(one)
    return Axis(given=given, values=tuple(values))


def _split_values(text: str) -> list[str]:
    """Part values at the commas that are in no quotes, list or table."""
    parts, depth, begin = [], 0, 0
    for token in re.finditer(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|[\[\]{},]', text):
        depth += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
        if token[0] == "," and depth <= 0:
            parts.append(text[begin : token.start()])
            begin = token.end()
    return [part.strip() for part in [*parts, text[begin:]]]


def _clashes(axes: Iterable[Axis], fixed: Sequence[Override]) -> Iterator[Problem]:
    seen = set[tuple[str, ...]]()
    by_key = {override.keys: override for override in fixed}
    for axis in axes:
        key = ".".join(axis.keys)
        if axis.keys in seen:
            yield _at(axis.given, f"{key} is swept already", "name all of its values at once")
        if axis.keys in by_key and not axis.continues:
            source = by_key[axis.keys].source.file
            yield _at(axis.given, f"{key} is set as well, by {source}", "leave one of the two out")
        if axis.keys == ("run", "directory"):
            yield _at(axis.given, "run.directory cannot be swept", "every run of a sweep has a folder of its own")
        seen.add(axis.keys)


def _at(given: str, message: str, hint: str) -> Problem:
    return Problem(message=message, hint=hint, where=Where(file=given))


def _name_combinations(axes: Sequence[Axis], chosen: Sequence[Sequence[Override]]) -> list[str]:
    rows = {".".join(axis.keys): [shown(values[at].value) for values in chosen] for at, axis in enumerate(axes)}
    return in_words(rows) if rows else [""] * len(chosen)
