"""A plugin whose declaration has been loaded: its options read, its code imported and called, what it returns checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, dataclass_transform

import attrs
from attrs import field, frozen

from petra_graph.errors import Path, PluginError, Problem, shown
from petra_graph.plugins.author_code import author_code, resolve_location
from petra_graph.plugins.stage_facts import StageFacts
from petra_graph.spec.keys import key
from petra_graph.spec.strict_values import describe, structure_as

API_VERSION = 1
"""The version of the contracts of all kinds. It grows when a plugin that kept them before would now break them."""
T = TypeVar("T")


@frozen(kw_only=True)
class NoOptions:
    """A plugin without options."""


def option(
    text: str,
    *,
    default: Any = attrs.NOTHING,
    unit: str = "",
    validator: Any = None,
    is_path: bool = False,
    is_code: bool = False,
) -> Any:
    """Return one option of a plugin's `Options` class; required without a default.

    Args:
        text: its meaning.
        unit: of its value.
        validator: bounds, exported next to `option`: `AtLeast(1)`, or a list, `[AtLeast(0), LessThan(1)]`. They give
            messages (see `petra_graph.spec.keys`). A rule that
            they cannot say is a function (instance, attribute, value) that raises `ValueError("must be odd")`.
        is_path: the value names a file or folder that is read; it is relative to the file that gives it.
        is_code: the value is "module:attribute", which `pkgutil.resolve_name` imports: in a module on Python's path, beside the
            specification, or in the current folder.
    """
    return key(default, text, unit=unit, validator=validator, is_path=is_path, is_code=is_code)


@frozen(kw_only=True)
class Declaration:
    """The declaration of any plugin.

    Attributes:
        summary: one sentence.
        options: a frozen, keyword-only attrs class; its fields are the allowed keys of the plugin's `options` table.
        build: the location of the code, "module:attribute"; imported when the plugin is built.
        api: the version of the contracts that the plugin was written for. A declaration without it was written for 1,
            the first; a petra-graph that keeps other contracts refuses the plugin, and names both versions.
    """

    summary: str
    options: type = NoOptions
    build: str
    api: int = 1

    @property
    def abilities(self) -> tuple[str, ...]:
        """What the plugin can do, in words; a kind's own class overrides this."""
        return ()


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def declares(contract: type[Declaration], build: str, **stated: Any) -> Callable[[type[T]], type[T]]:
    """Return a decorator for the class of a plugin's options, which is then its declaration: an entry point names the class.

        @declares(BlockDeclaration, "my_package.blocks:RevTanh", kind="reversible", streams=2)
        class RevTanh:
            "Additive coupling of one convolution."

            activation: Literal["tanh", "sigmoid"] = option("function after the convolution", default="tanh")

    The class becomes a frozen attrs class with keyword-only fields. The first line of its docstring is the summary. A method that has
    the name of a field of the declaration, as `facts` of a data set, gives that field.

    Args:
        contract: the class of the declarations of the plugin's kind.
        build: the location of the code.
        stated: other fields of the declaration.
    """

    def decorated(cls: type[T]) -> type[T]:
        options: Any = cls if "__attrs_attrs__" in vars(cls) else frozen(kw_only=True)(cls)
        more = attrs.fields_dict(contract).keys() - attrs.fields_dict(Declaration).keys()
        own = {name: vars(options).get(name) for name in more}
        fields = {name: value for name, value in own.items() if inspect.isfunction(value)}
        options.__declaration__ = contract(
            **{"summary": summary_of(options), "options": options, "build": build, **fields, **stated}
        )
        return options  # type: ignore[no-any-return]  # the class, or attrs' copy of it with slots

    return decorated


def stated_by(value: Any) -> Any:
    """Return the declaration that a class of options has by `declares`; any other value is returned as it is."""
    return vars(value).get("__declaration__", value) if isinstance(value, type) else value


def summary_of(code: Any) -> str:
    """Return the first line of a docstring, or the name of what has none."""
    return (getattr(code, "__doc__", None) or "").strip().partition("\n")[0] or code.__name__


def find_fault(declaration: Declaration, expected: type[Declaration]) -> str:
    """Return what is wrong with a declaration, as the end of a sentence; "" where it is right."""
    if not isinstance(declaration, expected):
        return f"is {type(declaration).__name__}, not {expected.__name__}"
    if declaration.api != API_VERSION:
        return f"is written for plugin API {declaration.api!r}, and this petra-graph has plugin API {API_VERSION}"
    if not isinstance(declaration.options, type) or not attrs.has(declaration.options):
        return f"has options = {declaration.options!r}, which is not an attrs class"
    try:
        for field in attrs.fields(attrs.resolve_types(declaration.options)):
            describe(field.type)
    except Exception as error:  # noqa: BLE001  annotations are code of the plugin
        return f"has options that cannot be read from TOML: {error}"
    return ""


@frozen(kw_only=True)
class Form:
    """What code of a kind looks like where it declares itself: named by an entry point, or by a specification.

    Attributes:
        fits: whether a value is such code.
        otherwise: why a value that does not fit is refused, as the end of a sentence.
        stage_after: the arguments after which the code may have a parameter `stage`, to be given the facts of its stage; None: none.
        declared: the fields of the declaration besides summary, options and build, of the code and its name.
    """

    fits: Callable[[Any], bool]
    otherwise: str
    stage_after: int | None = None
    declared: Callable[[Any, str], Mapping[str, Any]] = lambda _, __: {}


@frozen(kw_only=True, eq=False)
class PluginKind:
    """A kind of plugin.

    Attributes:
        noun: in messages.
        plural: of the noun, where it is not regular.
        group: of its entry points.
        table: of the specification, which names the plugin; "" for blocks, which nodes name.
        several: whether a specification may name several, in an array of tables.
        declaration: the class of its declarations.
        form: what code without a declaration looks like.
        options_last: whether `build` takes the options after its other arguments.
        used: what a run uses of what was built, of (plugin, arguments, what was built).
    """

    noun: str
    plural: str = ""
    group: str
    table: str = ""
    several: bool = False
    declaration: type[Declaration]
    form: Form
    options_last: bool = False
    used: Callable[[Any, Sequence[Any], Any], Any] = lambda _, __, built: built

    @property
    def short(self) -> str:
        """The group on the command line: "losses"."""
        return self.group.removeprefix("petra_graph.")

    @property
    def nouns(self) -> str:
        return self.plural or f"{self.noun}s"

    def declared_by(self, value: Any, location: str) -> Any:
        """Return the declaration that a value is or has, or that follows from code of this kind; the value where there is none.

        Args:
            value: what an entry point or a specification names.
            location: of the value, "module:attribute".
        """
        declaration = stated_by(value)
        if isinstance(declaration, Declaration) or not self.form.fits(value):
            return declaration
        fields = self.form.declared(value, location)
        return self.declaration(summary=summary_of(value), options=_options(value), build=location, **fields)

    def fault_of(self, declaration: Any) -> str:
        """Return what is wrong with what `declared_by` returned; "" where it is right."""
        return (
            find_fault(declaration, self.declaration) if isinstance(declaration, Declaration) else self.form.otherwise
        )


def called(arguments: str, result: str, *, stage: bool = False) -> Form:
    """Return the form of a kind whose code is any class or function with these arguments.

    Args:
        arguments: as in "options, facts".
        result: what it builds, in words.
        stage: whether the code may have one more parameter, `stage`.
    """
    count = arguments.count(",") + 1
    return Form(
        fits=takes(count, stage=stage),
        stage_after=count if stage else None,
        otherwise=f"is not a class or function ({arguments}) -> {result}",
    )


def asks_for_stage(code: Any, count: int) -> bool:
    """Whether code that is called with that number of arguments has another parameter `stage`, by which it asks for its stage's facts."""
    try:
        return "stage" in list(inspect.signature(code).parameters)[count:]
    except (TypeError, ValueError):  # code without a signature
        return False


def takes(count: int, *, stage: bool = False) -> Callable[[Any], bool]:
    """Return whether a value is a class or function that can be called with that number of arguments, and `stage` if it asks for it."""

    def fits(value: Any) -> bool:
        if not isinstance(value, type) and not inspect.isroutine(value):
            return False
        if (value.__module__ or "").partition(".")[0] == "torch":  # its arguments are never ours
            return False
        try:
            asked = {"stage": None} if stage and asks_for_stage(value, count) else {}
            inspect.signature(value).bind(*range(count), **asked)
        except (TypeError, ValueError):
            return False
        return True

    return fits


def _options(code: Any) -> type:
    """Return the class of options that code names: its attribute `Options`, or the annotation of its parameter `options`."""
    stated: Any = getattr(code, "Options", None)
    if stated is not None:
        return stated  # type: ignore[no-any-return]  # whatever it is, the declaration's fault names it
    try:
        annotation = inspect.signature(code, eval_str=True).parameters["options"].annotation
    except Exception:  # noqa: BLE001  annotations are code of the plugin
        return NoOptions
    return annotation if isinstance(annotation, type) and attrs.has(annotation) else NoOptions


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
