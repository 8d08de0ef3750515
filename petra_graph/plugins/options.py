"""The options of a plugin, read from its signature: the keyword parameters are the keys of its `options` table.

    def __init__(self, inputs, *, kernel: Annotated[int, "side of the kernel, pixels", AtLeast(1)] = 3): ...

An annotation is the type that TOML must have, a default is the default. `Annotated` adds what the option means and its bounds; any other
callable in it is given the value, and raises ValueError("must be odd"). Two annotations say more: the value of a `Path` is relative to the
file that gives it, and that of `Code` is "module:attribute", of a module that can be imported. Nothing is needed: classes of torch and
torchmetrics are read as they are, and what TOML cannot express is left to the code.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs

from petra_graph.spec.keys import BOUND, IS_CODE, IS_PATH, Bound, rule, together
from petra_graph.spec.strict_values import is_list, is_mapping, members


def is_code_name(name: str) -> bool:
    """Whether a name has the form "module:attribute"."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", name) is not None


_CODE = rule("", lambda name: "" if name is None or is_code_name(name) else 'must be "module:attribute"')
Code = Annotated[str, _CODE]
"""The annotation of an option that names code."""
STAGE = "stage"
"""The parameter by which code asks for the facts of the stage for which it is built."""
_SCALARS = (bool, int, float, str)


@lru_cache(maxsize=1024)
def options_class(code: Callable[..., Any], given: int, further: tuple[str, ...] = ()) -> type:
    """Return a frozen attrs class whose fields are the options of a class or function.

    Args:
        code: whose signature is read.
        given: how many of its first parameters the framework gives.
        further: options that `**kwargs` takes, which the code alone checks.
    """
    fields = {name: _field(*found) for name, found in _named(code, given).items() if name != STAGE}
    fields |= {name: attrs.field(type=Any, default=None) for name in further}
    made = attrs.make_class("Options", fields, frozen=True, kw_only=True)
    made.__doc__ = code.__doc__
    return made


class CodeName(str):  # noqa: SLOT000  it has an attribute
    """The "module:attribute" that an option names, with the folders in which the module may lie besides Python's path."""

    folders: Sequence[str] = ()


def arguments(options: Any, folders: Sequence[str] = ()) -> dict[str, Any]:
    """Return an instance of `options_class` as the arguments of the code; what is not set is left to its own defaults."""
    found: dict[str, Any] = {}
    for one in attrs.fields(type(options)):
        value = getattr(options, one.name)
        if value is None:
            continue
        if one.metadata.get(IS_CODE):
            value = CodeName(value)
            value.folders = folders
        found[one.name] = Path(value) if one.metadata.get(IS_PATH) else value
    return found


def takes_further(code: Callable[..., Any]) -> bool:
    """Whether code takes options that its signature does not name."""
    return any(one.kind is one.VAR_KEYWORD for one in _constructors(code)[-1][1])


def asks_for_stage(code: Callable[..., Any]) -> bool:
    return STAGE in _named(code)


def accepted(code: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments that a function has parameters for."""
    return dict(given) if takes_further(code) else {name: given[name] for name in _named(code) if name in given}


def _constructors(code: Callable[..., Any]) -> list[tuple[Callable[..., Any], list[inspect.Parameter]]]:
    """Return a function with its parameters, or a constructor with its own, and those of the bases to which it passes `**options` on."""
    if not isinstance(code, type) or "__signature__" in vars(code):
        return [(code, list(inspect.signature(code).parameters.values()))]
    found: list[tuple[Callable[..., Any], list[inspect.Parameter]]] = []
    for base in code.__mro__:
        if (constructor := vars(base).get("__init__")) is not None and base is not object:
            _, *parameters = inspect.signature(constructor).parameters.values()
            found.append((constructor, parameters))
            if not any(one.kind is one.VAR_KEYWORD for one in parameters):
                break
    return found or [(code, list(inspect.signature(code).parameters.values()))]


def _named(code: Callable[..., Any], given: int = 0) -> dict[str, tuple[inspect.Parameter, Callable[..., Any]]]:
    """Return the parameters after the given ones that have names, each with the function that has it."""
    found: dict[str, tuple[inspect.Parameter, Callable[..., Any]]] = {}
    for function, parameters in _constructors(code):
        for one in parameters[given:]:
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
                continue
            found.setdefault(one.name, (one, function))
    return found


def _field(parameter: inspect.Parameter, code: Callable[..., Any]) -> Any:
    annotation = _evaluated(parameter.annotation, code)
    said: Sequence[Any] = ()
    if get_origin(annotation) is Annotated:
        annotation, *said = get_args(annotation)
    said = (
        *said,
        *(one for member in members(annotation) for one in getattr(member, "__metadata__", ())),
    )  # `Code | None`
    marks = {IS_PATH: members(annotation) == (Path,), IS_CODE: _CODE in said}
    kind: Any = str if marks[IS_PATH] else toml_type(annotation)
    default: Any = attrs.NOTHING if parameter.default is parameter.empty else parameter.default
    unset = default is not attrs.NOTHING and not _in_toml(default)
    texts = [one for one in said if isinstance(one, str)]
    rules = [one if isinstance(one, Bound) else _rule(one) for one in said if callable(one)]
    bound: Any = together(*rules) if rules else None
    return attrs.field(
        type=kind | None if unset and kind is not Any else kind,
        default=None if unset else str(default) if isinstance(default, Path) else default,
        alias=parameter.name,  # attrs would leave out a leading "_"
        metadata={"help": " ".join(texts), "unit": "", BOUND: bound, **marks},
    )


def _rule(check: Callable[[Any], object]) -> Bound:
    """Return the bound of an author's function that raises where a value is wrong: "must be odd", or any reason."""

    def broken(value: Any) -> str:
        try:
            _ = value is None or check(value)
        except Exception as error:  # noqa: BLE001  it is the author's
            reason = str(error) or repr(error)
            return reason if reason.startswith("must ") else f"is refused: {reason}"
        return ""

    return rule("", broken)


def _evaluated(annotation: Any, code: Callable[..., Any]) -> Any:
    """Return an annotation's type; each is evaluated by itself, since some names may be there for type checkers alone."""
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    names = getattr(inspect.unwrap(code), "__globals__", None) or vars(sys.modules[code.__module__])
    try:
        return eval(annotation, names)  # noqa: S307  the author's own code
    except Exception:  # noqa: BLE001  whatever it names
        return Any


def toml_type(annotation: Any) -> Any:
    """Return what TOML can express of an annotation, as `float` of `float | Tensor`; Any where that is nothing."""
    bare: dict[Any, Any] = {list: list[Any], tuple: tuple[Any, ...], dict: dict[str, Any], Mapping: dict[str, Any]}
    annotation = bare.get(annotation, annotation) if annotation.__hash__ else annotation
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return toml_type(inside[0])
    if members(annotation) != (annotation,):
        kinds = tuple(kind for one in members(annotation) if (kind := toml_type(one)) is not Any)
        return Union[(*kinds, type(None))] if kinds and Any not in inside else Any
    if is_list(annotation):
        return origin[tuple(one if one is ... else toml_type(one) for one in inside)]
    if is_mapping(annotation):
        return dict[str, toml_type(inside[1])] if inside[0] is str else Any  # type: ignore[misc]
    literal = origin is Literal and all(type(one) in _SCALARS for one in inside)
    return annotation if literal or annotation in _SCALARS or attrs.has(annotation) else Any


def _in_toml(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_in_toml, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _in_toml(item) for key, item in value.items())
    return value is None or isinstance(value, Path) or type(value) in _SCALARS or attrs.has(type(value))
