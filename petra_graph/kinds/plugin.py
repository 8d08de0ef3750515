"""A plugin whose declaration has been loaded: its options read, its code imported and called, what it returns checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from petra_graph.errors import Path, PluginError, Problem, shown
from petra_graph.kinds.author_code import author_code, resolve_location
from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.plugin_kind import PluginKind, asks_for_stage
from petra_graph.kinds.stage_facts import StageFacts
from petra_graph.spec.strict_values import structure_as

FIRST_PARTY = "petra-graph"
"""The distribution of the catalog."""
_TRIED = frozenset(
    {
        FIRST_PARTY,
        *(f"{FIRST_PARTY}-{name}" for name in ("convnext", "delay", "studies", "text", "transformers", "vision")),
    }
)
"""The distributions whose plugins are tried by this project's tests, and by no run: not those that run modules of others."""


@frozen(kw_only=True)
class Plugin:
    """A plugin whose declaration has been loaded and checked."""

    kind: PluginKind
    name: str
    """The name that the specification gives."""
    distribution: str
    declaration: Declaration
    code: Any = field(default=None, eq=False)
    """What the declaration's `build` names, where it is at hand: a test may give a class that no module has."""

    def __str__(self) -> str:
        return f"{self.kind.noun} {shown(self.name)}"

    @property
    def label(self) -> str:
        """As `petra-graph check` takes it: "blocks/rev-basic"."""
        return label(self.kind, self.name)

    @property
    def owned(self) -> str:
        """The plugin with its distribution, for messages that blame it."""
        plain = self.name.rpartition(":")[2]
        return f"{self.kind.noun} {shown(plain)} of {self.distribution}" if self.distribution else str(self)

    @property
    def is_first_party(self) -> bool:
        return self.distribution in _TRIED

    def broken(self, fault: str) -> PluginError:
        """Return the error that the plugin breaks the contract of its kind."""
        return PluginError(f"{self.owned} is broken: {fault}")


def label(kind: PluginKind, name: str) -> str:
    """Return a plugin as `petra-graph check` takes it."""
    return f"{kind.short}/{name.rpartition(':')[2]}"


def read_options(plugin: Plugin, mapping: Mapping[str, Any], path: Path) -> tuple[Any | None, tuple[Problem, ...]]:
    """Return the plugin's `options` table at `path` as the plugin's own class, or None and the table's problems."""
    return structure_as(plugin.declaration.options, mapping, path, names={path: f"the options of {plugin}"})


def load(plugin: Plugin) -> Any:
    """Import what the declaration's `build` names: a block's class, or the function that makes the plugin's object.

    Raises:
        PluginError: the import fails, or the module does not have the attribute.
    """
    if plugin.code is not None:
        return plugin.code
    target = plugin.declaration.build
    return resolve_location(target, f"{plugin.owned} cannot be built from {target!r}")


def build_plugin(plugin: Plugin, *arguments: Any, stage: StageFacts | None = None) -> Any:
    """Return what a run uses of the object that the plugin's `build` makes of these arguments.

    Args:
        arguments: as its kind calls it.
        stage: the facts of the stage for which it is built, which code is given that asks for them.

    Raises:
        PluginError: the plugin's code raised an exception that is not one of ours, or the object breaks the contract of its kind.
    """
    build = load(plugin)
    with author_code(f"{plugin.owned} cannot be built"):
        return plugin.kind.used(plugin, arguments, call(build, *arguments, stage=stage))


def call(build: Any, *arguments: Any, stage: StageFacts | None) -> Any:
    """Call the code of a plugin, with the facts of a stage if it asks for them."""
    if stage is not None and asks_for_stage(build, len(arguments)):
        return build(*arguments, stage=stage)
    return build(*arguments)


@frozen
class Builder:
    """`build_plugin` of a plugin that is built for each stage: the optimizer."""

    plugin: Plugin

    def __call__(self, *arguments: Any, stage: StageFacts) -> Any:
        """Build it for a stage; arguments and errors as of `build_plugin`."""
        return build_plugin(self.plugin, *arguments, stage=stage)


def builder(plugin: Plugin) -> Builder:
    """Return what builds a plugin for each stage. Its code is imported now.

    Raises:
        PluginError: as `load`.
    """
    load(plugin)
    return Builder(plugin)


def knows_stage(plugin: Plugin) -> bool:
    """Whether the plugin's code, which is imported, asks for the facts of its stage.

    Raises:
        PluginError: as `load`.
    """
    after = plugin.kind.form.stage_after
    return after is not None and asks_for_stage(load(plugin), after)
