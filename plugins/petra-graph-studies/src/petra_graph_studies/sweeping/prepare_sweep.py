"""The preparation of a sweep: every combination is prepared as its run will be, so that whatever a run refuses is refused here.

Seeds change nothing that a run refuses, so each group is prepared once. A problem that several groups have is said once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any

from attrs import evolve, frozen

from petra_graph.errors import NoFeasiblePlan, PetraGraphError, PluginError, Problem, SpecError
from petra_graph.spec.load_spec import Given, dump, load
from petra_graph.spec.model import Spec
from petra_graph.training.prepared_run import prepare
from petra_graph.training.record.resolved_spec import resolved
from petra_graph.training.run_notes import outline, start_warnings
from petra_graph_studies.sweeping.combinations import Combination

_LISTED = 3
"""Combinations that a message names."""


@frozen(kw_only=True)
class PreparedGroup:
    """What is known of the runs of a group before they begin."""

    name: str
    words: str
    figures: Mapping[str, Any]
    """As `run --dry-run` prints them."""
    warnings: Sequence[str]
    identity: str
    """Equal where runs are the same but for name, folder and seed."""
    parent: str
    """The folder of runs that the specification names."""


def prepare_groups(
    given: Given, overrides: Sequence[str], combinations: Sequence[Combination], processes: int = 1
) -> list[PreparedGroup]:
    """Prepare one run of each group, and check the others' values.

    Args:
        given: the specification.
        overrides: of all runs, KEY=VALUE.
        combinations: those of a group stand together.
        processes: how many share the stages of a run.

    Raises:
        SpecError, PluginError, NoFeasiblePlan: all problems of all combinations, each once; or two groups are the same run.
    """
    prepared: list[PreparedGroup] = []
    found: list[tuple[Combination, PetraGraphError]] = []
    groups = [list(members) for _, members in groupby(combinations, lambda one: one.group)]
    for first, *others in groups:
        try:
            prepared.append(_prepare_group(given, overrides, first, processes))
        except (SpecError, PluginError, NoFeasiblePlan) as error:
            found.append((first, error))
        loaded = [(other, load(given, [*overrides, *other.overrides])) for other in others]
        found += [(other, SpecError(one.problems)) for other, one in loaded if one.problems]
    if found:
        raise _gather_problems(found, len(groups))
    _refuse_the_same([first for first, *_ in groups], prepared)
    return prepared


def identity(spec: Spec) -> str:
    """Write a resolved specification without its name and folder, which change no number."""
    return dump(evolve(spec, name="run", run=evolve(spec.run, directory="runs")))


def _prepare_group(given: Given, overrides: Sequence[str], first: Combination, processes: int) -> PreparedGroup:
    ready = prepare(given, [*overrides, *first.overrides], processes)
    spec = resolved(ready)
    of_any_seed = identity(evolve(spec, run=evolve(spec.run, seed=0)))
    return PreparedGroup(
        name=spec.name,
        words=first.group_words,
        figures=outline(ready),
        warnings=list(start_warnings(ready, processes)),
        identity=sha256(of_any_seed.encode()).hexdigest(),
        parent=spec.run.directory,
    )


def _gather_problems(found: Sequence[tuple[Combination, PetraGraphError]], groups: int) -> PetraGraphError:
    """Return one error with every problem once, and with the swept values that have it where not all have."""
    having: dict[Problem, list[Combination]] = {}
    for combination, error in found:
        for problem in error.problems:
            having.setdefault(problem, []).append(combination)
    problems = []
    for problem, combinations in having.items():
        swept = set.intersection(*(set(one.overrides) for one in combinations))
        own = {text for text in swept if problem.where is not None and problem.where.file.endswith(text)}
        others = [
            text for text in combinations[0].overrides if text in swept - own and not text.startswith("run.seed=")
        ]
        of_all = len({one.group for one in combinations}) == groups
        where = "" if of_all or (own and not others) else _where(others, combinations)
        problems.append(evolve(problem, message=f"{problem.message}{where}"))
    kinds = [type(error) for _, error in found]
    kind = next(
        kind for kind in (SpecError, PluginError, NoFeasiblePlan) if any(issubclass(one, kind) for one in kinds)
    )
    return kind(problems)


def _where(swept: Sequence[str], combinations: Sequence[Combination]) -> str:
    if swept:
        return f" (with {' and '.join(swept)})"
    names = list(dict.fromkeys(one.group_words for one in combinations))
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f" (with {'; '.join(names[:_LISTED])}{more})"


def _refuse_the_same(firsts: Sequence[Combination], prepared: Sequence[PreparedGroup]) -> None:
    same: dict[str, list[str]] = {}
    for first, group in zip(firsts, prepared, strict=True):
        same.setdefault(group.identity, []).append(first.group_words)
    problems = [
        Problem(
            message=f"these combinations are the same run: {'; '.join(words)}", hint="leave out all of them but one"
        )
        for words in same.values()
        if len(words) > 1
    ]
    if problems:
        raise SpecError(problems)
