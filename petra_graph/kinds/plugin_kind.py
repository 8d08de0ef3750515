"""A kind of plugin as a value: where a specification names it, what its code looks like, and what a run makes of what it builds.

    kind = PluginKind(noun="loss", group="petra_graph.losses", table="loss", declaration=LossDeclaration, form=...)

The module of a kind imports no torch; its functions do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen

from petra_graph.kinds.declaration import Declaration, NoOptions, find_fault, stated_by, summary_of


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
