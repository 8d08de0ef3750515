"""Values to the frozen classes of a specification, with every problem of the whole text at once.

Where something is wrong there is no `Spec`, but the tables and nodes that can be read still are, so that plugins, their
options and the graph are checked in the same pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

import attrs
from attrs import field, frozen

from petra_graph.errors import Path, Problem, shown
from petra_graph.spec.explain import Place, explain
from petra_graph.spec.merge import PLUGIN_TABLES
from petra_graph.spec.model import (
    InputSpec,
    LossSpec,
    LrScheduleSpec,
    MethodSpec,
    NodeSpec,
    OptimizerSpec,
    PrecisionSpec,
    Spec,
)
from petra_graph.spec.strict import converter

T = TypeVar("T")

SELECTORS = {"name", "block", "options"}
"""Keys without which the rest of a table says nothing about a plugin."""
DEFAULTED: Mapping[str, type] = {
    "loss": LossSpec,
    "optimizer": OptimizerSpec,
    "lr_schedule": LrScheduleSpec,
    "method": MethodSpec,
}
"""Tables that choose something even where they are not given."""


@frozen(kw_only=True)
class Structured:
    """What became of a mapping."""

    spec: Spec | None
    """None where anything is wrong."""
    parts: Mapping[Path, Any] = field(factory=dict)
    """Tables and nodes by path, those that could be read; complete where there is a `spec`."""
    problems: tuple[Problem, ...] = ()


def structure(values: Mapping[str, Any]) -> Structured:
    """Read the merged values of a specification."""
    names = node_names(values)
    spec, problems = structure_as(Spec, values, (), names=names)
    problems += _network(values)
    tables: dict[Path, type] = {(name,): cls for name, cls in PLUGIN_TABLES.items()} | {("graph", "input"): InputSpec}
    tables |= {("method",): MethodSpec, ("precision",): PrecisionSpec} | dict.fromkeys(_nodes(values), NodeSpec)
    parts = {path: _salvage(cls, _at(values, path)) for path, cls in tables.items()}
    parts |= {(name,): cls() for name, cls in DEFAULTED.items() if name not in values}
    present = {path: part for path, part in parts.items() if part is not None}
    return Structured(spec=None if problems else spec, parts=present, problems=problems)


def structure_as(
    cls: type[T], value: Any, path: Path, *, names: Mapping[Path, str] | None = None
) -> tuple[T | None, tuple[Problem, ...]]:
    """Read a value as a class, strictly.

    Args:
        cls: an attrs class.
        value: what TOML gave.
        path: where the value stands in the specification.
        names: what messages call the tables that have better names than their paths.

    Returns:
        the instance, or None and what is wrong, with paths that start with `path`.
    """
    try:
        return converter().structure(value, cls), ()
    except Exception as error:  # noqa: BLE001  plugins' own validators may raise anything
        place = Place(path=path, raw=value, names=names or {})
        return None, tuple(explain(error, place))


def node_names(values: Mapping[str, Any]) -> dict[Path, str]:
    """Return what messages call each node: its name rather than its index."""
    names = {}
    for path in _nodes(values):
        node = _at(values, path)
        given = node.get("name") if isinstance(node, Mapping) else None
        names[path] = f"node {shown(given)}" if isinstance(given, str) and given else f"the node at index {path[-1]}"
    return names


def _network(values: Mapping[str, Any]) -> tuple[Problem, ...]:
    if "graph" in values and "architecture" in values:
        hint = "[architecture] stands for a list of nodes; keep one of the two"
        return (
            Problem(
                message="both [graph] and [architecture] are given", hint=hint, path=("architecture",), at_key=True
            ),
        )
    if "graph" not in values and "architecture" not in values and not _misspelt_network(values):
        hint = '[architecture] with name = "revnet", or one [[graph.node]] for each node'
        return (Problem(message="neither [graph] nor [architecture] is given", hint=hint),)
    return ()


def _misspelt_network(values: Mapping[str, Any]) -> bool:
    """Tell whether an unknown key means one of the two tables, which is told already."""
    tables = [attribute.name for attribute in attrs.fields(Spec)]
    meant = {close for key in values if key not in tables for close in get_close_matches(key, tables, n=1)}
    return bool(meant & {"graph", "architecture"})


def _nodes(values: Mapping[str, Any]) -> list[Path]:
    nodes = _at(values, ("graph", "node"))
    return [("graph", "node", index) for index in range(len(nodes))] if isinstance(nodes, list) else []


def _at(value: Any, path: Path) -> Any:
    """Return the value at a path; None where there is none."""
    for key in path:
        if isinstance(value, list) and isinstance(key, int):
            value = value[key]
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _salvage(cls: type, value: Any) -> Any:
    """Read a table without those of its keys that are wrong; None where it then no longer says which plugin it means.

    What is wrong has been reported already.
    """
    part, problems = structure_as(cls, value, ())
    if part is not None or not isinstance(value, Mapping):
        return part
    wrong = {problem.path[0] for problem in problems if problem.path}
    misspelt = any(problem.at_key for problem in problems) and not value.keys() & {"name", "block"}
    if wrong & SELECTORS or misspelt:
        return None
    return structure_as(cls, {key: item for key, item in value.items() if key not in wrong}, ())[0]
