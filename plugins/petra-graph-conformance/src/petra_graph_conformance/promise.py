"""A promise, and all promises of a kind of plugin: what checks each in a trial, and when it is asked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from attrs import field, frozen

from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind

Check = Callable[[Any], None]
"""Checks one promise of a trial, and raises BrokenPromise. The first paragraph of its docstring says what is promised."""
When = Literal["run", "kit"]
"""When a promise is asked: a field of `Promise`."""


@frozen
class Promise:
    """One promise of a kind.

    Attributes:
        name: as messages use it.
        check: what checks it.
        run: whether a run asks it of plugins that are not this project's, on its own shapes and samples.
        kit: whether `petra-graph check` and a plugin's own tests ask it.
        foundation: whether the promises after it cannot be checked if it is broken.
        doubt: whether what breaks it may be meant: a run warns of it, and the kit says so without failing.
        applies: whether a trial's plugin makes it at all.
    """

    name: str
    check: Check
    run: bool = field(default=True, kw_only=True)
    kit: bool = field(default=True, kw_only=True)
    foundation: bool = field(default=False, kw_only=True)
    doubt: bool = field(default=False, kw_only=True)
    applies: Callable[[Any], bool] = field(default=lambda _: True, kw_only=True)

    @property
    def sentence(self) -> str:
        return (inspect.getdoc(self.check) or "").partition("\n\n")[0].replace("\n", " ")


@frozen(kw_only=True, eq=False)
class KindChecks:
    """What is asked of the plugins of a kind.

    Attributes:
        kind: of the plugins.
        promises: in the order in which they are checked, the foundations first.
        trial: the class of their trials: `trial.of(plugin, options)` makes one.
        trials: returns the trials of a plugin of which only the declaration is known, the likeliest first; it is called
            as (plugin, options, given), with the given ones among `settings`. None: that of `trial` alone.
        settings: what the user of `petra-graph check` may say of a trial, `--NAME VALUE`, each with an example.
    """

    kind: PluginKind
    promises: tuple[Promise, ...]
    trial: Any
    trials: Callable[[Plugin, Any, Mapping[str, Any]], Sequence[Any]] | None = None
    settings: Mapping[str, str] = field(factory=dict)

    def asked(self, when: When) -> tuple[Promise, ...]:
        """Return the promises that are asked at this time, in their order."""
        return tuple(promise for promise in self.promises if getattr(promise, when))

    def trials_of(self, plugin: Plugin, options: Any, given: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """Return the trial of a plugin with the settings that are given, or likely trials, the likeliest first."""
        if self.trials is None:
            return [self.trial.of(plugin, options)]
        return self.trials(plugin, options, {name: one for name, one in (given or {}).items() if name in self.settings})
