"""What is wrong with a declaration, in the words that end a sentence: "has no summary".

Nothing is built, and torch is not imported: `validate`, `list` and `show` find these faults, whose author is the plugin's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import attrs

from petra_graph.registry.contracts import (
    API_VERSION,
    BlockDeclaration,
    CallbackDeclaration,
    Changes,
    DataFacts,
    DataSetDeclaration,
    Declaration,
    LoggerDeclaration,
    OptimizerDeclaration,
)
from petra_graph.spec.bounds import Bound
from petra_graph.spec.error_messages import RawValue
from petra_graph.spec.model import Dtype, Kind
from petra_graph.spec.schema import as_mapping, class_schema, is_union
from petra_graph.spec.strict import Unreadable, read

_TARGETS = ("int64", "float32", "float64")
_LOCATION = re.compile(r"[\w.]+:[\w.]+")


def find_fault(declaration: object, expected: type[Declaration]) -> str:
    """Return the first fault of a declaration, as the end of a sentence; "" where the declaration is right."""
    if not isinstance(declaration, expected):
        return f"is {type(declaration).__name__}, not {expected.__name__}"
    return next(_faults(declaration), "")


def api_fault(declaration: object) -> str:
    """Return the fault of a declaration that was written for other contracts; "" where it was written for these."""
    version = getattr(declaration, "api", API_VERSION)
    if not isinstance(declaration, Declaration) or version == API_VERSION:
        return ""
    return f"is written for plugin API {version!r}, and this petra-graph has plugin API {API_VERSION}"


def facts_fault(facts: object) -> str:
    """Return the first fault of what should be a data set's facts, as the end of a sentence."""
    if not isinstance(facts, DataFacts):
        return f"are {described(facts)}, not DataFacts"
    return next(_facts_faults(facts), "")


def described(value: object) -> str:
    """Return what came, in words: "None", or its type with the article."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _faults(declaration: Any) -> Iterator[str]:
    if not isinstance(declaration.build, str) or not _LOCATION.fullmatch(declaration.build):
        yield f'has build = {declaration.build!r}, not "module:attribute"'
    if not isinstance(declaration.summary, str) or not declaration.summary.strip():
        yield "has no summary"
    yield from _option_faults(declaration.options)
    match declaration:
        case BlockDeclaration():
            yield from _block_faults(declaration)
        case OptimizerDeclaration():
            yield from _rate_faults(declaration.options)
        case DataSetDeclaration():
            yield from _data_set_faults(declaration)
        case LoggerDeclaration():
            for name in ("requires", "install"):
                if not isinstance(getattr(declaration, name), str):
                    yield f"has {name} = {getattr(declaration, name)!r}, not a string"
        case CallbackDeclaration():
            yield from _among("changes", declaration.changes, get_args(Changes))
            yield from _among("reads_weights", declaration.reads_weights, (True, False))
        case _:
            pass


def _block_faults(declaration: BlockDeclaration) -> Iterator[str]:
    yield from _among("kind", declaration.kind, get_args(Kind))
    count: Any = declaration.streams
    if count is not None and (type(count) is not int or count < 1):
        yield f"has streams = {count!r}, not the number of tensors that the block reads"


def _rate_faults(options: type) -> Iterator[str]:
    rate = attrs.fields_dict(options).get("lr")
    if rate is None:
        yield f"has options without `lr` ({options.__name__})"
    elif rate.type is not float:
        yield f"has options whose `lr` is of type {getattr(rate.type, '__name__', rate.type)}, not float"


def _data_set_faults(declaration: DataSetDeclaration) -> Iterator[str]:
    if not callable(getattr(declaration, "facts", None)):
        yield "has `facts` that cannot be called"
    if declaration.read is not None and not _LOCATION.fullmatch(str(declaration.read)):
        yield f'has read = {declaration.read!r}, not "module:attribute"'


def _among(name: str, value: object, allowed: tuple[object, ...]) -> Iterator[str]:
    if value not in allowed:
        yield f"has {name} = {value!r}, not one of {', '.join(map(str, allowed))}"


def _option_faults(options: object) -> Iterator[str]:
    if not isinstance(options, type) or not attrs.has(options):
        yield f"has options = {options!r}, which is not an attrs class"
        return
    try:
        class_schema(options, complete=True)
    except Exception as error:  # noqa: BLE001  annotations are code of the plugin
        yield f"has options that cannot be read from TOML: {error}"
        return
    for field in attrs.fields(options):
        fault = _default_fault(field)
        if fault:
            yield f"has an option with a wrong default: {fault}"


def _default_fault(field: attrs.Attribute[Any]) -> str:
    """Return why the resolved specification could not hold an option's default; "" where it can."""
    default: Any = field.default
    if default is attrs.NOTHING or getattr(default, "takes_self", False):
        return ""
    if hasattr(default, "factory"):
        default = default.factory()
    if default is None:
        free = field.type is Any or (is_union(field.type) and type(None) in get_args(field.type))
        return "" if free else f"{field.name} is None, and its type has no None"
    try:
        value = read(RawValue(path=(field.name,), raw=as_mapping(default), names={}), field.type)
        if isinstance(field.validator, Bound):
            field.validator(None, field, value)
    except Unreadable as error:
        return error.problems[0].message
    except ValueError as error:
        return str(error)
    return ""


def _facts_faults(facts: DataFacts) -> Iterator[str]:
    shape = facts.shape
    if not isinstance(shape, tuple) or not all(type(size) is int and size > 0 for size in shape):
        yield f"have shape = {shape!r}, not a tuple of integers above 0"
        return
    if facts.dtype not in get_args(Dtype):
        yield f"have dtype = {facts.dtype!r}, not one of {', '.join(get_args(Dtype))}"
    if not isinstance(facts.target_shape, tuple) or not all(
        type(size) is int and size > 0 for size in facts.target_shape
    ):
        yield f"have target_shape = {facts.target_shape!r}, not a tuple of integers above 0"
    if facts.target_dtype not in _TARGETS:
        yield f"have target_dtype = {facts.target_dtype!r}, not one of {', '.join(_TARGETS)}"
    if facts.classes is not None and (type(facts.classes) is not int or facts.classes < 1):
        yield f"have classes = {facts.classes!r}, not a number of classes"
    if (facts.mean is None) != (facts.std is None):
        yield "have one of mean and std; give both, or neither"
    for name in ("mean", "std"):
        values = getattr(facts, name)
        if values is not None and (not shape or len(values) not in {1, shape[0]}):
            yield f"have {len(values)} values in {name}, and samples of {shape[0] if shape else 0} channels"
    if facts.classes is not None and facts.class_names is not None and len(facts.class_names) != facts.classes:
        yield f"have {len(facts.class_names)} class_names, and classes = {facts.classes}"
