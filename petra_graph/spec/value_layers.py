"""Layers of values, the later over the earlier, each value with the text that it came from.

Tables merge key by key; any other value replaces the one below. Three rules depend on the meaning of a table:

Decision: options belong to the plugin that the table names. A layer that names another plugin drops the `options` of
the layers below it; a learning-rate schedule changed from "step" to "cosine" cannot use milestones.

Decision: a schedule belongs to its method in the same way. `--set method.name=backprop` over a table with
`schedule = "1f1b"` means backpropagation under its own schedule, not a contradiction.

Decision: `graph` and `architecture` are two ways to give the network, so a layer with either drops the other from the
layers below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import attrs
from attrs import frozen

from petra_graph.errors import Path, Problem, Where
from petra_graph.spec.model import MethodSpec, PluginSpec, Spec
from petra_graph.spec.source import Source


def plugin_tables(spec_class: type[Spec]) -> Iterator[tuple[str, type[PluginSpec]]]:
    """Yield the tables of a specification that name a plugin, each with its class."""
    for field in attrs.fields(attrs.resolve_types(spec_class)):
        of_field = get_args(field.type) or (field.type,)
        if isinstance(of_field[0], type) and issubclass(of_field[0], PluginSpec):
            yield field.name, of_field[0]


def plugin_lists(spec_class: type[Spec]) -> dict[str, type[PluginSpec]]:
    """Return the arrays of tables each of which names a plugin, with the class of their tables."""
    found = {}
    for field in attrs.fields(attrs.resolve_types(spec_class)):
        item, *_ = (*get_args(next(iter(get_args(field.type)), None)), None)
        if isinstance(item, type) and issubclass(item, PluginSpec):
            found[field.name] = item
    return found


PLUGIN_TABLES: Mapping[str, type[PluginSpec]] = dict(plugin_tables(Spec))
"""The tables that name a plugin."""
PLUGIN_LISTS = plugin_lists(Spec)
"""The arrays of tables each of which names a plugin."""
NAMED_TABLES: Mapping[str, type] = {**PLUGIN_TABLES, "method": MethodSpec}
"""The tables with a `name` that some of their other keys belong to."""
OWNED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(PLUGIN_TABLES, ("options",)),
    "method": ("schedule", "reversible", "buffered", "backward", "flush"),
}
"""The keys of a table that belong to its `name`, and are dropped when a layer gives another name."""


@frozen(kw_only=True)
class Layers:
    """The values of several texts laid over one another."""

    values: Mapping[str, Any]
    origins: Mapping[Path, Source]
    """The text that gave the value at each path."""
    sources: tuple[Source, ...]
    """All texts; the specification that was given comes first."""

    def locate(self, problem: Problem) -> Problem:
        """Return the problem with its position, or that of the nearest table around it."""
        if problem.where is not None:
            return problem
        for length in range(len(problem.path), 0, -1):
            path = problem.path[:length]
            source = self.origins.get(path)
            if source is not None:
                return attrs.evolve(problem, where=source.where(path))
        return attrs.evolve(problem, where=Where(file=self.sources[0].file))

    def in_order(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Return the problems located, without repetition, in the order of their positions."""
        files = [source.file for source in self.sources]

        def order(problem: Problem) -> tuple[int, int]:
            where = problem.where
            if where is None or where.file not in files:
                return (len(files), 0)
            return (files.index(where.file), where.line or 0)

        located = {self.locate(problem): None for problem in problems}
        return tuple(sorted(located, key=order))


def source_layers(source: Source) -> Layers:
    """Return one text as layers."""
    values = {key: value for key, value in source.values.items() if key != "extends"}
    return Layers(values=values, origins=dict.fromkeys(paths(values), source), sources=(source,))


def merge(below: Layers, above: Layers) -> Layers:
    """Return `above` laid over `below`."""
    base = {name: _without_owned(name, value, above.values.get(name)) for name, value in below.values.items()}
    for given, other in (("graph", "architecture"), ("architecture", "graph")):
        if given in above.values:
            base.pop(other, None)
    values = _merged(base, above.values)
    origins = {path: above.origins.get(path) or below.origins[path] for path in paths(values)}
    sources = {id(source): source for source in (*above.sources, *below.sources)}  # a file may be extended twice
    return Layers(values=values, origins=origins, sources=tuple(sources.values()))


def plugin_name(table: str, value: Mapping[str, Any]) -> Any:
    """Return the name that a top-level table gives, or its default; None where there is no default."""
    default = attrs.fields_dict(NAMED_TABLES[table])["name"].default
    return value.get("name", None if default is attrs.NOTHING else default)


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every value inside `value`, tables and arrays included."""
    if path:
        yield path
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from paths(item, (*path, index))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(below)
    for key, value in above.items():
        base = values.get(key)
        values[key] = _merged(base, value) if isinstance(value, Mapping) and isinstance(base, Mapping) else value
    return values


def _without_owned(name: str, below: Any, above: Any) -> Any:
    if name not in OWNED or not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return below
    if "name" not in above or above["name"] == plugin_name(name, below):
        return below
    return {key: value for key, value in below.items() if key not in OWNED[name]}
