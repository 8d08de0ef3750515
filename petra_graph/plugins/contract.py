"""The contract of a plugin: the signature is the schema.

    class RevTanh(AdditiveCoupling):
        def __init__(self, inputs, *, kernel: int = 3): ...

An entry point, or "my_module:Name" in a specification, names a class or a function. The first parameters of its kind are the framework's, by
position (`petra_graph.plugins.kinds`); every other one is an option, a key of the table `options` (`petra_graph.plugins.options`). The first
line of its docstring says what it is, and what a kind asks besides are attributes of the code. Nothing is declared beside it, so that
classes of torch and torchmetrics are plugins as they are.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any

from attrs import field, frozen

from petra_graph.errors import Path, PluginError, Problem, SpecError, kind_of, shown
from petra_graph.plugins.author_code import author_code, author_line
from petra_graph.plugins.options import STAGE, accepted, arguments, asks_for_stage, options_class, takes_further
from petra_graph.plugins.stage_facts import StageFacts
from petra_graph.spec.strict_values import structure_as

FIRST_PARTY = "petra-graph"
"""The distribution of the catalog."""
OWN = {FIRST_PARTY, *(f"{FIRST_PARTY}-{name}" for name in ("convnext", "studies", "text", "vision"))}
"""The distributions of this project, whose plugins are tried by its tests, and by no run."""

_BEFORE = "is written for petra-graph 0.2: let its options be keyword parameters, as in def __init__(self, inputs, *, kernel: int = 3)"


def _called(plugin: Plugin, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return plugin.code(*given, **options)


@frozen(eq=False)
class PluginKind:
    """A kind of plugin.

    Attributes:
        noun: in messages.
        short: the end of the group of its entry points, and its name on the command line.
        table: of the specification, which names the plugin; "" for blocks, which nodes name.
        gives: the parameters by position, by the names that they usually have.
        builds: what a call returns, in words.
        several: whether a specification may name several, in an array of tables.
        adapt: returns the class or function for code that may also be something else.
        fault: returns why a class or function is none of this kind, as the end of a sentence; "" where it is.
        make: returns what a run uses of what the code builds, or refuses it; of (plugin, what is given, options).
    """

    noun: str
    short: str
    table: str
    gives: tuple[str, ...]
    builds: str
    several: bool = field(default=False, kw_only=True)
    adapt: Callable[[Any], Any] = lambda code: code
    fault: Callable[[Any], str] = lambda _: ""
    make: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] = _called

    @property
    def group(self) -> str:
        return f"petra_graph.{self.short}"

    @property
    def nouns(self) -> str:
        return f"{self.noun}{'es' if self.noun.endswith('s') else 's'}"


@frozen(kw_only=True)
class Plugin:
    """A class or function as a plugin of a kind."""

    kind: PluginKind
    name: str
    """The name that the specification gives."""
    distribution: str
    code: Any
    options: type = field(eq=False)
    """The attrs class of its options; whether it has further ones, only the code knows."""
    folders: Sequence[str] = field(default=(), eq=False)
    """Where code that its options name may lie, besides Python's path."""

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
    def summary(self) -> str:
        """The first line of the docstring, which `inspect.getdoc` would take from a base class; the name of what has none."""
        said = (getattr(self.code, "__doc__", None) or "").strip().partition("\n")[0]
        return said or getattr(self.code, "__name__", self.name)

    @property
    def is_first_party(self) -> bool:
        return self.distribution in OWN

    @property
    def asks_for_stage(self) -> bool:
        """Whether the code asks for the facts of the stage for which it is built."""
        return asks_for_stage(self.code)

    def broken(self, fault: str) -> PluginError:
        """Return the error that the plugin breaks the contract of its kind."""
        return PluginError(f"{self.owned} is broken: {fault}")


def label(kind: PluginKind, name: str) -> str:
    """Return a plugin as `petra-graph check` takes it."""
    return f"{kind.short}/{name.rpartition(':')[2]}"


def plugin_of(kind: PluginKind, name: str, code: Any, distribution: str = "", folders: Sequence[str] = ()) -> Plugin:
    """Return a class or function as a plugin.

    Raises:
        PluginError: it is none, or cannot be called as its kind is.
    """
    plugin, code = f"{kind.noun} {shown(name)}{f' of {distribution}' * bool(distribution)}", kind.adapt(code)
    if fault := _fault(kind, code):
        raise PluginError(f"{plugin} {fault}")
    options = options_class(code, len(kind.gives))
    return Plugin(kind=kind, name=name, distribution=distribution, code=code, options=options, folders=folders)


def _fault(kind: PluginKind, code: Any) -> str:
    form = f"({', '.join((*kind.gives, '*, ...options'))}) -> {kind.builds}"
    if not callable(code):
        return f"is {kind_of(code)}, not a class or function {form}"
    try:
        parameters = list(inspect.signature(code).parameters.values())
    except (TypeError, ValueError):
        return f"has no signature; write a function {form} around it"
    names = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    if names[: len(kind.gives) + 1].count("options") or hasattr(code, "Options"):
        return _BEFORE
    first = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(first) < len(kind.gives) and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return f"must be a class or function {form}; its parameters are ({', '.join(names)})"
    return kind.fault(code)


@contextmanager
def importing(failure: str) -> Iterator[None]:
    """Import a plugin, as `author_code`; what it prints is no result of a command, and goes to standard error."""
    with author_code(failure), redirect_stdout(sys.stderr):
        try:
            yield
        except ImportError as error:
            if error.name in {"petra_graph.plugins", "petra_graph.blocks"}:
                raise PluginError(f"{failure}: {error.msg}", f"it {_BEFORE}") from error
            raise


def read_options(plugin: Plugin, mapping: Mapping[str, Any], path: Path) -> tuple[Any | None, tuple[Problem, ...]]:
    """Return the plugin's `options` table at `path` as the class of its options, or None and the table's problems."""
    own = plugin.options
    if takes_further(plugin.code):
        known = {one.name for one in own.__attrs_attrs__}  # type: ignore[attr-defined]
        own = options_class(plugin.code, len(plugin.kind.gives), tuple(sorted(mapping.keys() - known)))
    return structure_as(own, mapping, path, names={path: f"the options of {plugin}"})


def make(plugin: Plugin, *given: Any, options: Any, stage: StageFacts | None = None) -> Any:
    """Return what a run uses of what a plugin builds, and raise whatever its code raises.

    Args:
        given: what its kind gives by position.
        options: an instance of the class of its options.
        stage: the facts of the stage for which it is built, which code is given that asks for them.
    """
    asked = {STAGE: stage} if stage is not None and plugin.asks_for_stage else {}
    return plugin.kind.make(plugin, given, arguments(options, plugin.folders) | asked)


def build_plugin(
    plugin: Plugin, options: Any, *given: Any, stage: StageFacts | None = None, seed: int | None = None
) -> Any:
    """Return what a run uses of what a plugin builds.

    Args:
        options: an instance of the class of its options.
        given: what its kind gives by position.
        stage: as of `make`.
        seed: of the run: what a constructor draws from torch's, numpy's or Python's generators follows from it and the plugin's name. None:
            they are left alone.

    Raises:
        SpecError: it refuses its options, by ValueError or TypeError.
        PluginError: it raised another exception that is not one of ours, or what it built breaks the contract of its kind.
    """
    from petra_graph.plugins.generators import seeded_by

    seeding = nullcontext() if seed is None else seeded_by(seed, plugin.label)
    with author_code(f"{plugin.owned} cannot be built"), refusals(plugin), seeding:
        return make(plugin, *given, options=options, stage=stage)


def ask(plugin: Plugin, method: str, options: Any, *given: Any) -> Any:
    """Return what a static method of a plugin says, which is called with those of the options that it has parameters for; errors as of `build_plugin`."""
    function = getattr(plugin.code, method)
    with author_code(f"{plugin.owned}: {method} failed"), refusals(plugin):
        return function(*given, **accepted(function, arguments(options, plugin.folders)))


@contextmanager
def refusals(plugin: Plugin) -> Iterator[None]:
    """Call a plugin with its options: a ValueError or TypeError is what it says of them, and where an author's line raised it, a mistake there."""
    try:
        yield
    except (TypeError, ValueError) as error:
        at = author_line(error)
        raise SpecError(Problem(message=f"{plugin}: {error}", hint=at and f"raised at {at}")) from error


@frozen
class Builder:
    """`build_plugin` of a plugin that is built for each stage: the optimizer."""

    plugin: Plugin

    def __call__(self, groups: Any, options: Any, *, stage: StageFacts) -> Any:
        """Build it for a stage; arguments and errors as of `build_plugin`."""
        return build_plugin(self.plugin, options, groups, stage=stage)
