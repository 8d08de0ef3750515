"""The plans of all combinations of some values: what if, without a run.

Each combination is planned as `plan --set` plans it. One that is refused has its row too, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from petra_graph_report.compare.compare_plans import ALONE, assumptions_of, figures
from petra_graph_report.compare.plan_table import PlanTable

from petra_graph.api.finished_run import Changes
from petra_graph.api.spec_to_run import given_specification
from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.plan_spec import Planner
from petra_graph.planning.predict_plan import Plan
from petra_graph.program.plan_document import Document
from petra_graph.spec.load_spec import Given
from petra_graph.spec.model import Spec
from petra_graph.spec.overrides import assignments, parse_override
from petra_graph_studies.sweeping.combinations import (
    Axis,
    Combination,
    Varied,
    axes_of_texts,
    axes_of_values,
    combinations,
)

_FIGURES = ("samples_per_second", "stages", "memory_total", "memory_peak", "fits", "staleness", "speedup", "exact")
"""Of a row; None where the combination is refused."""


def vary_texts(given: Given, overrides: Sequence[str], varied: Iterable[str]) -> PlanTable:
    """Return the plans of what `--vary KEY=VALUE,VALUE` describes."""
    return PlanTable(vary(given, overrides, axes_of_texts(varied, Varied)))


def vary_values(
    spec: Spec | str | Path,
    values: Mapping[str, Sequence[Any]],
    changes: Changes | None = None,
) -> PlanTable:
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
    return PlanTable(vary(given_specification(spec), assignments(changes), axes_of_values(values)))


def vary(given: Given, overrides: Sequence[str], axes: Iterable[Axis]) -> Document:
    """Return the memory, staleness and speed of every combination.

    Args:
        given: the specification.
        overrides: of all plans, KEY=VALUE.
        axes: what is varied.

    Raises:
        SpecError: a key is varied twice, or set as well; or every combination is wrong.
        PluginError: as of `Planner`.
    """
    axes, plans, wrong = list(axes), list[Plan](), list[SpecError]()
    rows = []
    for one in combinations(axes, overrides):
        try:
            plan = Planner(given, [*overrides, *one.overrides]).plan()
        except (SpecError, NoFeasiblePlan) as error:
            wrong += [error] if isinstance(error, SpecError) else []
            more = len(error.problems) - 1
            why = f"{error.problems[0].message}{f' (and {more} more)' if more else ''}"
            rows.append(_row(one, dict.fromkeys(_FIGURES) | {"note": why}, refused=True))
            continue
        plans.append(plan)
        rows.append(_row(one, {"stages": len(plan.prediction.programs), **figures(plan)}))
    if len(wrong) == len(rows):
        raise wrong[0]
    keys = [".".join(axis.keys) for axis in axes]
    name = plans[0].spec.name if plans else given if isinstance(given, str) else given.name
    return {
        "name": name,
        "varied": keys,
        "rows": rows,
        "speedup_over": ALONE,
        "assumptions": assumptions_of(plans),
    }


def _row(one: Combination, planned: dict[str, Any], *, refused: bool = False) -> Document:
    values = {".".join(value.keys): value.value for value in map(parse_override, one.overrides)}
    return {"name": one.words, "values": values, **planned, "refused": refused}
