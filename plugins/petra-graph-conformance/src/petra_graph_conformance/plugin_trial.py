"""A plugin under test: with its options, and what it needs to be tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from attrs import evolve, frozen

from petra_graph.errors import PluginError, SpecError
from petra_graph.kinds.declaration import Declaration, stated_by
from petra_graph.kinds.plugin import Plugin, build_plugin, call, knows_stage, load, read_options
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.kinds.stage_facts import DELAYED, UNDELAYED, StageFacts
from petra_graph.units import plural

Given = Declaration | Plugin | Callable[..., Any]
"""A declaration, the class of options that has one, the code itself, or a plugin that is loaded."""
Options = Mapping[str, Any] | object
"""An `options` table as a specification would give it, an instance of the plugin's own class, or None: no keys."""


class AnyTrial(Protocol):
    """A plugin under test."""

    @property
    def kind(self) -> PluginKind:
        """The plugin's kind."""

    @property
    def name(self) -> str:
        """The plugin's name, for messages."""

    @property
    def about(self) -> str:
        """Its options and inputs, in words."""

    @property
    def distribution(self) -> str:
        """The package that it comes from; "" where it comes from none."""

    def attempt(self) -> None:
        """Raise an exception where the trial does not fit the plugin, so that another one is likelier; PluginError: it fits, and fails."""


@frozen(kw_only=True)
class PluginTrial:
    """A plugin of a kind other than blocks, with its options."""

    plugin: Plugin
    options: Any

    @staticmethod
    def of_kind() -> PluginKind:
        """Return the kind of the plugins that the class tries."""
        raise NotImplementedError

    @classmethod
    def of(cls, given: Given, options: Options = None, **settings: Any) -> Self:
        """Make a trial of a plugin, with its `options` table; settings are attributes of the same name.

        Raises:
            SpecError: the plugin's options class refuses the options.
            TypeError: it is neither a plugin of this kind nor code of one.
        """
        plugin = as_plugin(cls.of_kind(), given)
        return cls(plugin=plugin, options=read_given(plugin, options), **settings)

    @property
    def kind(self) -> PluginKind:
        return self.plugin.kind

    @property
    def name(self) -> str:
        """The name that a specification gives, or the location of its code."""
        return self.plugin.name

    @property
    def about(self) -> str:
        """Its options, in words."""
        return str(self.options)

    @property
    def distribution(self) -> str:
        return self.plugin.distribution

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

    def attempt(self) -> None:
        """Raise an exception where the trial does not fit the plugin, so that another one is likelier."""


@frozen(kw_only=True)
class StageTrial(PluginTrial):
    """A plugin that is built for each stage, and may ask for the stage's facts.

    Attributes:
        stages: those in which it is tried, one after another, if it `asks`; if it does not, they are all the same to it.
    """

    stages: Sequence[StageFacts] = (UNDELAYED, DELAYED)

    @property
    def facts(self) -> StageFacts:
        """The facts of the stage in which it is tried."""
        return self.stages[0]

    @property
    def asks(self) -> bool:
        """Whether it asks for the facts of its stage; code that cannot be imported does not."""
        try:
            return knows_stage(self.plugin)
        except PluginError:
            return False

    @property
    def cases(self) -> Sequence[Self]:
        """The trials in which each promise is asked: one for each stage, or this one alone."""
        return tuple(evolve(self, stages=(stage,)) for stage in self.stages) if self.asks else (self,)

    @property
    def place(self) -> str:
        """The stage of a case, in words; "" where it does not matter."""
        if len(self.stages) > 1 or not self.asks:
            return ""
        return (
            f"in stage {self.facts.index} of {self.facts.stages}, with a delay of {plural(self.facts.steady, 'update')}"
        )

    @property
    def about(self) -> str:
        return ", ".join(filter(None, (str(self.options), self.place)))

    def build_raw(self, *arguments: Any) -> Any:
        return call(load(self.plugin), *arguments, stage=self.facts)

    def build(self, *arguments: Any) -> Any:
        return build_plugin(self.plugin, *arguments, stage=self.facts)


def as_plugin(kind: PluginKind, given: Given) -> Plugin:
    """Return what a test gives as a plugin without a distribution.

    Raises:
        TypeError: it is neither a plugin of this kind nor code of one.
    """
    if isinstance(given, Plugin):
        return given
    named = ":".join(str(getattr(given, name, "")) for name in ("__module__", "__qualname__"))
    location = re.sub(r"[^\w.:]", "", named)  # of a class in a function, or in a folder whose name has hyphens
    declaration = kind.declared_by(given, location)
    if not isinstance(declaration, kind.declaration):
        is_code = callable(declaration)
        found = f"{location} {kind.form.otherwise}" if is_code else f"got {type(declaration).__name__}"
        raise TypeError(f"expected {kind.declaration.__name__} or code of that kind ({found})")
    code = None if declaration is stated_by(given) else given
    return Plugin(kind=kind, name=declaration.build, distribution="", declaration=declaration, code=code)


def read_given(plugin: Plugin, options: Options) -> Any:
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
