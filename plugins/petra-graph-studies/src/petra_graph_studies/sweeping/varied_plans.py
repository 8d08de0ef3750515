"""The plans of all combinations of some values: what if, without a run.

Each combination is planned as `plan --set` plans it. One that is refused has its row too, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from petra_graph.api.finished_run import Changes
from petra_graph.api.spec_to_run import PlanView, given_specification
from petra_graph.planning.compare_plans import compare_specs
from petra_graph.planning.plan_spec import Planner
from petra_graph.program.plan_document import Document
from petra_graph.spec.load_spec import Given
from petra_graph.spec.model import Spec
from petra_graph.spec.overrides import assignments, parse_override
from petra_graph_studies.sweeping.combinations import Axis, Varied, axes_of_texts, axes_of_values, combinations


def vary_texts(given: Given, overrides: Sequence[str], varied: Iterable[str]) -> Document:
    """Return the plans of what `--vary KEY=VALUE,VALUE` describes."""
    return vary(given, overrides, axes_of_texts(varied, Varied))


def vary_values(
    spec: Spec | str | Path, values: Mapping[str, Sequence[Any]], changes: Changes | None = None
) -> PlanView:
    """Plan a specification with all combinations of some values, as `petra-graph plan --vary` does; a refusal is a row with its reason.

    Args:
        spec: or the name of its file.
        values: the values of each key, as in {"partition.memory": ["4GiB", "8GiB"], "data.batch": [32, 64]}.
        changes: values to set in all plans.

    Raises:
        SpecError, PluginError: as `petra_graph.load_spec`; SpecError if every combination is wrong.
    """
    if not values:
        raise TypeError('give `values`, as in {"data.batch": [32, 64]}')
    return PlanView(vary(given_specification(spec), assignments(changes), axes_of_values(values)))


def vary(given: Given, overrides: Sequence[str], axes: Iterable[Axis]) -> Document:
    """Return the memory, staleness and speed of every combination, with its values.

    Args:
        given: the specification.
        overrides: of all plans, KEY=VALUE.
        axes: what is varied.

    Raises:
        SpecError: a key is varied twice, or set as well; or every combination is wrong.
        PluginError: as of `Planner`.
    """
    found = list(combinations(list(axes), overrides))
    document = compare_specs({one.words: partial(Planner, given, [*overrides, *one.overrides]) for one in found})
    for row, one in zip(document["rows"], found, strict=True):
        row["values"] = {".".join(value.keys): value.value for value in map(parse_override, one.overrides)}
    return document
