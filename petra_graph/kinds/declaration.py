"""The declaration of a plugin: named by an entry point, and checked when the plugin is resolved.

A declaration describes a plugin, the class of its options and the location of its code (`build = "module:attribute"`),
which is imported only when the plugin is built. So a specification is checked without importing torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import attrs
from attrs import frozen

from petra_graph.spec.keys import key
from petra_graph.spec.value_types import describe

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
            messages (see `petra_graph.spec.bounds`). A rule that
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
