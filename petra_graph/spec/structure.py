"""The frozen classes of a specification from its merged values, with every problem of the whole text at once.

A text with problems gives no `Spec`, but still its readable tables and nodes, so that the same pass checks plugins,
their options and the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from petra_graph.errors import Path, Problem, shown
from petra_graph.spec.model import InputSpec, NodeSpec, PrecisionSpec, Spec
from petra_graph.spec.partition import PartitionSpec
from petra_graph.spec.strict_values import structure_as
from petra_graph.spec.value_layers import NAMED_TABLES, PLUGIN_LISTS, plugin_name

SELECTORS = {"name", "block", "options"}
"""The keys that a table needs to name a plugin."""


@frozen(kw_only=True)
class Structured:
    """A specification, its readable parts and its problems."""

    spec: Spec | None
    """None where there are problems."""
    parts: Mapping[Path, Any] = field(factory=dict)
    """The readable tables and nodes by path; complete where there is a `spec`."""
    problems: tuple[Problem, ...] = ()


def structure(values: Mapping[str, Any]) -> Structured:
    """Return the specification that merged values describe."""
    names = {path: _name_of(values, path, "node") for path in _nodes(values)}
    names |= {path: _name_of(values, path, noun) for noun in PLUGIN_LISTS for path in _tables(values, (noun,))}
    spec, problems = structure_as(Spec, values, (), names=names)
    problems += _network(values)
    tables: dict[Path, type] = {(name,): cls for name, cls in NAMED_TABLES.items()}
    tables |= {("graph", "input"): InputSpec, ("precision",): PrecisionSpec, ("partition",): PartitionSpec}
    tables |= dict.fromkeys(_nodes(values), NodeSpec)
    tables |= {path: cls for name, cls in PLUGIN_LISTS.items() for path in _tables(values, (name,))}
    parts = {path: _salvage(cls, _at(values, path)) for path, cls in tables.items()}
    # A table with a default name chooses a plugin or a method even where it is left out.
    absent = [name for name in NAMED_TABLES if name not in values and plugin_name(name, {}) is not None]
    parts |= {(name,): NAMED_TABLES[name]() for name in absent}
    present = {path: part for path, part in parts.items() if part is not None}
    return Structured(spec=None if problems else spec, parts=present, problems=problems)


def _name_of(values: Mapping[str, Any], path: Path, noun: str) -> str:
    """Return the name of a node or plugin in messages: its own name where it has one, else its index."""
    item = _at(values, path)
    name = item.get("name") if isinstance(item, Mapping) else None
    return f"{noun} {shown(name)}" if isinstance(name, str) and name else f"the {noun} at index {path[-1]}"


def _network(values: Mapping[str, Any]) -> tuple[Problem, ...]:
    if "graph" in values and "architecture" in values:
        message = "both [graph] and [architecture] are given"
        hint = "[architecture] makes a list of nodes; keep one of the two"
        return (Problem(message=message, hint=hint, path=("architecture",), at_key=True),)
    if "graph" not in values and "architecture" not in values:
        hint = '[architecture] with name = "revnet", or one [[graph.node]] for each node'
        return (Problem(message="neither [graph] nor [architecture] is given", hint=hint),)
    return ()


def _nodes(values: Mapping[str, Any]) -> list[Path]:
    return _tables(values, ("graph", "node"))


def _tables(values: Mapping[str, Any], path: Path) -> list[Path]:
    """Return the path of every item of an array; [] where there is none."""
    items = _at(values, path)
    return [(*path, index) for index in range(len(items))] if isinstance(items, list) else []


def _at(value: Any, path: Path) -> Any:
    """Return the value at a path; None where there is none."""
    for key in path:
        if isinstance(value, list) and isinstance(key, int):
            value = value[key]
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _salvage(cls: type, value: Any) -> Any:
    """Return a table read without its wrong keys, which are reported already; None where it then names no plugin."""
    if not isinstance(value, Mapping):
        return None
    part: Any
    part, problems = structure_as(cls, value, ())
    if part is not None:
        return part
    wrong = {problem.path[0] for problem in problems if problem.path}
    misspelt = any(problem.at_key for problem in problems) and not value.keys() & {"name", "block"}
    if wrong & SELECTORS or misspelt:
        return None
    return structure_as(cls, {key: item for key, item in value.items() if key not in wrong}, ())[0]
