"""A kind of plugin as a value: where a specification names it, what its code looks like, and what is wrong with what it builds.

    kind = PluginKind(noun="loss", group="petra_graph.losses", table="loss", declaration=LossDeclaration, form=...)

The module of a kind imports no torch; its functions do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen

from petra_graph.kinds.declaration import Declaration, NoOptions, find_fault, stated_by, summary_of


@frozen(kw_only=True)
class Form:
    """What code of a kind looks like where it declares itself: named by an entry point, or by a specification.

    Attributes:
        fits: whether a value is such code.
        having: as in "has no class with {having}", or "has no {having}".
        otherwise: why a value that does not fit is refused, as the end of a sentence.
        hint: what to write.
        likely: whether code that fits is probably of this kind, by what it is called with and has, where it fits several.
        stage_after: the arguments after which the code may have a parameter `stage`, to be given the facts of its stage; None: none.
        declared: the fields of the declaration besides summary, options and build, of the code and its name.
    """

    fits: Callable[[Any], bool]
    having: str
    otherwise: str
    hint: str
    likely: Callable[[Any], bool] = lambda _: True
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
        form: what code without a declaration looks like; None: there must be one.
        built_faults: yields what is wrong with what `build` returned, of (plugin, arguments, what was built).
        guard: what a run calls in place of what was built, of (plugin, what was built): it checks every later value.
        options_last: whether `build` takes the options after its other arguments.
    """

    noun: str
    plural: str = ""
    group: str
    table: str = ""
    several: bool = False
    declaration: type[Declaration]
    form: Form
    built_faults: Callable[[Any, Sequence[Any], Any], Iterable[str]] = lambda *_: ()
    guard: Callable[[Any, Any], Any] = lambda _, built: built
    options_last: bool = False

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
        """Return the first fault of what `declared_by` returned; "" where it is right."""
        return (
            find_fault(declaration, self.declaration) if isinstance(declaration, Declaration) else self.form.otherwise
        )


def called(
    contract: type[Declaration],
    arguments: str,
    result: str,
    more: str = "",
    methods: Iterable[str] = (),
    *,
    stage: bool = False,
) -> Form:
    """Return the form of a kind whose code is any class or function with these arguments.

    Args:
        contract: the class of its declarations.
        arguments: as in "options, facts". Code whose parameters have these names is likely of this kind.
        result: what it builds, in words.
        more: what to write besides, in words.
        methods: of what it builds. A class is likely of this kind only if it has them.
        stage: whether the code may have one more parameter, `stage`.
    """
    names, methods = arguments.split(", "), tuple(methods)

    def likely(code: Any) -> bool:
        written = {name for cls in code.__mro__ for name in vars(cls)} if isinstance(code, type) else set(methods)
        return _parameters(code)[: len(names)] == names and written.issuperset(methods)

    return Form(
        fits=takes(len(names), stage=stage),
        having=f"class or function ({arguments})",
        otherwise=f"is not a class or function that is called as ({arguments})",
        likely=likely,
        stage_after=len(names) if stage else None,
        hint=f"write a function or class ({arguments}) -> {result}{more}; or name an instance of {contract.__name__}",
    )


def _parameters(code: Any) -> list[str]:
    """Return the names of the parameters of a class or function that `takes` some."""
    return list(inspect.signature(code).parameters)


def asks_for_stage(code: Any, count: int) -> bool:
    """Whether code that is called with that number of arguments has another parameter `stage`, by which it asks for its stage's facts."""
    try:
        return "stage" in _parameters(code)[count:]
    except (TypeError, ValueError):  # code without a signature
        return False


def takes(count: int, *, stage: bool = False) -> Callable[[Any], bool]:
    """Return whether a value is a class or function that can be called with that number of arguments.

    Args:
        count: of the arguments.
        stage: whether it may ask for its stage's facts besides.
    """

    def fits(value: Any) -> bool:
        if not isinstance(value, type) and not inspect.isroutine(value):
            return False
        if (value.__module__ or "").partition(".")[
            0
        ] == "torch":  # its first argument may have any name, and is never ours
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
        return stated  # type: ignore[no-any-return]  # whatever it is, the declaration's faults name it
    try:
        annotation = inspect.signature(code, eval_str=True).parameters["options"].annotation
    except Exception:  # noqa: BLE001  annotations are code of the plugin
        return NoOptions
    return annotation if isinstance(annotation, type) and attrs.has(annotation) else NoOptions
