"""Single values set from the command line: `--set method.name=backprop`.

The key is a TOML key; an item of an array has its index as key or, in an array of tables, its `name`. The value is a
TOML value, or else text. A `--set` assigns: a whole table replaces the table before it.

Decision: plugin names are set before all other keys, because another plugin's name drops the options of the plugin
before it; the order of `--set` on the command line must not decide which options survive.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from attrs import frozen

from petra_graph.errors import Path, Problem, SpecError, Where, kind_of, shown, suggestion
from petra_graph.spec.class_names import toml_values
from petra_graph.spec.source import MOST_LEVELS, TOO_DEEP, Source, has_long_key, levels
from petra_graph.spec.value_layers import OWNED, Layers, paths, plugin_name


@frozen(kw_only=True)
class Override:
    """One `--set`."""

    text: str
    keys: tuple[str, ...]
    value: Any

    @property
    def source(self) -> Source:
        """The source of the value; messages show it as their file."""
        return Source(file=_as_given(self.text), text=self.text, is_set=True)


class Change(str):
    """An assignment by Python code, which was not written as `--set`."""

    __slots__ = ()


def _as_given(text: str) -> str:
    if isinstance(text, Change):
        return f'changes["{text.partition("=")[0]}"]'
    return f"{getattr(text, 'option', '--set')} {text}"


def _refusal(text: str, message: str, hint: str = "") -> SpecError:
    return SpecError(Problem(message=message, hint=hint, where=Where(file=_as_given(text))))


def parse_override(text: str) -> Override:
    """Return the override that KEY=VALUE describes.

    Raises:
        SpecError: the key or the value is missing, or the value opens a TOML string, array or table and does not close it.
    """
    key, equals, written = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise _refusal(text, "not KEY=VALUE", "for example --set run.epochs=3")
    if not written:
        raise _refusal(text, "no value", f"empty text is written {key}='\"\"'")
    if has_long_key(text):
        raise _refusal(text, TOO_DEEP)
    try:
        keys = _single_path(tomllib.loads(f"{key} = 0"))
    except ValueError:
        raise _refusal(text, f"{shown(key)} is not a TOML key") from None
    try:
        parsed = tomllib.loads(f"value = {written}")
        value = parsed["value"] if list(parsed) == ["value"] else written
    except (ValueError, RecursionError) as error:
        if written[0] in "\"'[{":
            why = re.sub(r" \(at line \d+, column \d+\)$", "", str(error))
            raise _refusal(text, f"{written} is not a TOML value: {why}") from None
        value = written
    if len(keys) + levels(value) > MOST_LEVELS:
        raise _refusal(text, TOO_DEEP)
    return Override(text=text, keys=keys, value=value)


def parse_overrides(texts: Iterable[str]) -> tuple[list[Override], list[Problem]]:
    """Return the overrides that can be read, and the problems of the others."""
    overrides: list[Override] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            overrides.append(parse_override(text))
        except SpecError as error:
            problems += error.problems
    return overrides, problems


def assignments(changes: Mapping[str, Any] | None) -> list[str]:
    """Return values by key as overrides; a class may be given in place of its name.

    Raises:
        TypeError: they are not a mapping.
        SpecError: TOML cannot write a value.
    """
    if changes is None:
        return []
    if not isinstance(changes, Mapping):
        raise TypeError(f'changes are values by key, as in {{"run.epochs": 3}} (got {kind_of(changes)})')
    return [Change(f"{key}={shown(toml_values(value, key))}") for key, value in changes.items()]


def apply_overrides(layers: Layers, texts: Iterable[str]) -> tuple[Layers, tuple[Problem, ...]]:
    """Return the layers with the overrides assigned, and the problems of those that cannot be."""
    overrides, problems = parse_overrides(texts)
    overrides.sort(key=lambda override: override.keys[-1] not in ("name", "block"))
    for override in overrides:
        try:
            layers = _apply(layers, override)
        except SpecError as error:
            problems += error.problems
    return layers, tuple(problems)


def _apply(layers: Layers, override: Override) -> Layers:
    values = dict(layers.values)
    origins = dict(layers.origins)
    if override.keys in (("architecture",), ("architecture", "name")):
        values.pop("graph", None)
    elif override.keys == ("graph",):
        values.pop("architecture", None)
    container: Any = values
    path: Path = ()
    for key in override.keys[:-1]:
        index = _index(container, key, path, override)
        path = (*path, index)
        inner = container.get(index, {}) if isinstance(container, dict) else container[index]
        inner = list(inner) if isinstance(inner, list) else dict(inner) if isinstance(inner, Mapping) else inner
        container[index] = inner
        container = inner
        if path not in origins:
            origins[path] = override.source
    last = _index(container, override.keys[-1], path, override)
    if _names_another(path, last, container, override.value):
        for owned in OWNED.get(str(path[0]), ("options",)):
            container.pop(owned, None)
    container[last] = override.value
    path = (*path, last)
    present = set(paths(values))
    origins = {at: source for at, source in origins.items() if at in present and at[: len(path)] != path}
    origins |= dict.fromkeys(paths(override.value, path), override.source)
    return attrs.evolve(layers, values=values, origins=origins, sources=(*layers.sources, override.source))


def _names_another(path: Path, key: str | int, table: Any, value: Any) -> bool:
    """Return whether the assignment of `key` makes the table name another plugin than before."""
    if len(path) == 1 and path[0] in OWNED and key == "name":
        return bool(plugin_name(str(path[0]), table) != value)
    if len(path) == 2 and isinstance(path[1], int) and key == "name":  # noqa: PLR2004  a list of plugins and the index
        return bool(table.get("name") != value)
    return path[:2] == ("graph", "node") and key == "block" and table.get("block") != value


def _index(container: Any, key: str, path: Path, override: Override) -> str | int:
    """Return the key or index that `key` means in a table or array."""
    if isinstance(container, dict):
        return key
    inside = ".".join(str(part) for part in path)
    if not isinstance(container, list):
        raise _refusal(override.text, f"{inside} is {shown(container)}, not a table")
    if key.isdecimal():
        if int(key) < len(container):
            return int(key)
        raise _refusal(override.text, f"{inside} has {len(container)} items, counted from 0 (got {key})")
    names = [item.get("name") if isinstance(item, Mapping) else None for item in container]
    if names.count(key) == 1:
        return names.index(key)
    if key in names:
        raise _refusal(override.text, f"{inside} has several items named {shown(key)}", "give the index")
    allowed = [name for name in names if isinstance(name, str)]
    raise _refusal(override.text, f"{inside} has no item named {shown(key)}", suggestion(key, allowed))


def _single_path(nested: Any) -> tuple[str, ...]:
    keys: list[str] = []
    while isinstance(nested, dict):
        [(key, nested)] = nested.items()
        keys.append(key)
    return tuple(keys)
