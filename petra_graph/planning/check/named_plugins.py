"""The plugins that a specification names: resolved, with their options read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from petra_graph.errors import Path, PetraGraphError, Problem, shown
from petra_graph.planning.check.checked_spec import ConfiguredPlugin
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.plugins.callback import missing_package
from petra_graph.plugins.contract import FIRST_PARTY, Plugin, PluginKind, read_options
from petra_graph.plugins.kinds import LOGGER
from petra_graph.plugins.local_plugins import code_problem
from petra_graph.plugins.registry import Registry
from petra_graph.spec.keys import IS_CODE, IS_PATH, keys_with
from petra_graph.spec.load_spec import LoadedSpec
from petra_graph.spec.model import MetricSpec, PluginSpec


@frozen(kw_only=True)
class NamedPlugins:
    """Finds plugins by their names in a specification; what is wrong with one is added to `problems`, and the plugin is None."""

    loaded: LoadedSpec
    registry: Registry
    problems: ProblemCollector
    seed: int | None = None
    """Of the run."""
    resolved: dict[tuple[str, str], Plugin | None] = attrs.field(factory=dict)
    """By group and name, so that one that many nodes use is reported where it is used first."""

    def of_table(self, kind: PluginKind) -> ConfiguredPlugin | None:
        """Return the plugin of a kind's top-level table."""
        table = kind.table
        part = self.loaded.parts.get((table,))
        if part is None:
            return None
        written = self.loaded.layers.values.get(table)
        by_default = not (isinstance(written, Mapping) and "name" in written)
        name = self.registry.within(kind, part.name, [FIRST_PARTY]) if by_default else part.name
        plugin = self.resolve(kind, name, (table, "name"))
        return None if plugin is None else self._configured(plugin, part.options, (table, "options"))

    def of_list(self, kind: PluginKind) -> tuple[ConfiguredPlugin, ...]:
        """Return the plugins of a kind's array of tables, each of which may be there once; a metric once under each name."""
        found: dict[tuple[str, str], ConfiguredPlugin] = {}
        for path, part in self.loaded.parts.items():
            if path[:1] != (kind.table,) or not isinstance(part, PluginSpec):
                continue
            plugin = self.resolve(kind, part.name, (*path, "name"))
            if plugin is None:
                continue
            plain = plugin.name.rpartition(":")[2]
            key, label, hint = (plugin.distribution, plain if plugin.distribution else plugin.name), "", ""
            if isinstance(part, MetricSpec):
                label = part.recorded_as or plain
                key, hint = ("", label), f'record it under another name: recorded_as = "{label}-2"'
            if key in found:
                if label and self.loaded.spec is None:  # another name that was given may not be readable
                    continue
                twice = (
                    f"{found[key].plugin} is recorded as {shown(label)}, too" if label else f"{plugin} is listed twice"
                )
                self.problems.add([Problem(message=twice, hint=hint, path=(*path, "name"))])
            elif (configured := self._configured(plugin, part.options, (*path, "options"))) is not None:
                found[key] = attrs.evolve(configured, label=label)
        return tuple(found.values())

    def default_loggers(self) -> tuple[ConfiguredPlugin, ...]:
        """Return the loggers of a specification that names none: TensorBoard, if it is installed."""
        try:
            plugin = self.registry.resolve(LOGGER, self.registry.within(LOGGER, "tensorboard", [FIRST_PARTY]))
        except PetraGraphError:
            return ()
        options, _ = read_options(plugin, {}, ())
        return () if missing_package(plugin) else (ConfiguredPlugin(plugin=plugin, options=options, path=("logger",)),)

    def resolve(self, kind: PluginKind, name: str, path: Path) -> Plugin | None:
        """Return the plugin of that name. One whose options name the user's code counts as the user's: it is tried before a run."""
        key = (kind.group, name)
        if self.resolved.get(key) is None:
            plugin = self.problems.at(*path).attempt(self.registry.resolve, kind, name)
            with_code = plugin is not None and keys_with(IS_CODE, plugin.options)
            self.resolved[key] = attrs.evolve(plugin, distribution="") if plugin is not None and with_code else plugin
        return self.resolved[key]

    def options(self, plugin: Plugin, mapping: Mapping[str, Any], path: Path) -> Any:
        """Read the options of a plugin, and look for the code that they name."""
        files = keys_with(IS_PATH, plugin.options)
        located = self.loaded.layers.located
        mapping = {key: located(value, (*path, key)) if key in files else value for key, value in mapping.items()}
        options, problems = read_options(plugin, mapping, path)
        self.problems.add(problems)
        codes = {key: getattr(options, key, None) for key in keys_with(IS_CODE, plugin.options)}
        found = {key: code_problem(key, name, self.registry.folders) for key, name in codes.items() if name is not None}
        wrong = [attrs.evolve(problem, path=(*path, key)) for key, problem in found.items() if problem is not None]
        self.problems.add(wrong)
        return None if wrong else options

    def _configured(self, plugin: Plugin, mapping: Mapping[str, Any], path: Path) -> ConfiguredPlugin | None:
        options = self.options(plugin, mapping, path)
        return None if options is None else ConfiguredPlugin(plugin=plugin, options=options, path=path, seed=self.seed)
