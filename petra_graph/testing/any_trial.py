"""What trials of all kinds have in common: a plugin with options, and what it needs to be tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from attrs import frozen

from petra_graph.errors import SpecError
from petra_graph.registry.building import build_plugin, load, read_options
from petra_graph.registry.contracts import Declaration
from petra_graph.registry.registry import GROUPS, Plugin

D = TypeVar("D", bound=Declaration)


class AnyTrial(Protocol):
    """A plugin under test."""

    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """The plugin's name, for messages."""

    @property
    def about(self) -> str:
        """Its options and inputs, in words."""


@frozen(kw_only=True)
class PluginTrial:
    """A plugin of a kind other than blocks, with its options."""

    kind: ClassVar[str]
    group: ClassVar[str]
    plugin: Plugin
    options: Any

    @property
    def name(self) -> str:
        """The name that a specification gives, or the location of its code."""
        return self.plugin.name

    @property
    def about(self) -> str:
        """Its options, in words."""
        return str(self.options)

    @property
    def declaration(self) -> Any:
        """The declaration, of the kind's own class."""
        return self.plugin.declaration

    def build_raw(self, *arguments: Any) -> Any:
        """Return what `build` returns, unchecked and without a guard."""
        return load(self.plugin)(*arguments)

    def build(self, *arguments: Any) -> Any:
        """Return what `build` returns, checked as a run checks it.

        Raises:
            PluginError: it breaks the contract of its kind.
        """
        return build_plugin(self.plugin, *arguments)


def as_plugin(group: str, given: Declaration | Plugin) -> Plugin:
    """Return a declaration as a plugin without a distribution.

    Raises:
        TypeError: it is no declaration of this group's kind.
    """
    if isinstance(given, Plugin):
        return given
    contract = GROUPS[group].contract
    if not isinstance(given, contract):
        raise TypeError(f"expected {contract.__name__} (got {type(given).__name__})")
    return Plugin(group=group, name=given.build, distribution="", declaration=given)


def read_given(plugin: Plugin, options: Mapping[str, Any] | object) -> Any:
    """Return options that are given as a specification would give them, or as an instance of the plugin's own class.

    Raises:
        SpecError: the class refuses them.
        TypeError: they are neither.
    """
    expected = plugin.declaration.options
    if isinstance(options, expected):
        return options
    table = {} if options is None else options
    if not isinstance(table, Mapping):
        raise TypeError(f"options must be a mapping or {expected.__name__} (got {type(table).__name__})")
    read, problems = read_options(plugin, table, ("options",))
    if problems:
        raise SpecError(problems)
    return read
