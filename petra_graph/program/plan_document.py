"""The type, the shape and the version of a plan's JSON document, which the compiler writes and the report reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from attrs import frozen

Document: TypeAlias = dict[str, Any]
"""A whole plan, or one of its objects such as a stage; `petra_graph.compiler.document` lists the keys."""

VERSION = 1
"""Of the document's keys and their meaning; a key that is added changes none."""

_MOST = 2**63
"""A number beyond it cannot count bytes or operations."""


@frozen
class Later:
    """The shape of a value whose key was added later: older plans do not have it."""

    shape: Any


@frozen
class Each:
    """The shape of an object whose keys are any, and whose values have one shape."""

    shape: Any


_PASSES = {"forward": float, "backward": float}
_BYTES = {"total": int}
SHAPE: dict[str, Any] = {
    "name": str,
    "method": str,
    "schedule": (str, [int]),
    "accumulation": int,
    "replicas": Later(int),
    "micro_batch": int,
    "samples_per_update": Later(int),
    "stages": [
        {
            "index": int,
            "nodes": [str],
            "kind": str,
            "device": str,
            "depth": int,
            "staleness": float,
            "parameters": int,
            "flops": _PASSES,
            "seconds": _PASSES,
            "bytes": _BYTES,
            "channel_bytes": _PASSES,
        }
    ],
    "totals": {"parameters": int, "bytes": _BYTES, "checkpoint_bytes": Later(int)},
    "paper_accounting": {"model": float, "input_buffer": float, "parameter_buffer": float, "total": float},
    "timing": {
        "tick_seconds": float,
        "samples_per_second": float,
        "speedup_over_reversible_backprop": float,
        "bubble_fraction": float,
        "exposed_communication": Later({"all_reduce": float, "links": float}),
        "utilisation": [float],
        "fill_seconds": float,
        "drain_seconds": float,
        "exact": Later(bool),
    },
    "run": Later(
        {
            "epochs": int,
            "micro_batches_per_epoch": (int, None),
            "epoch_seconds": (float, None),
            "seconds": (float, None),
        }
    ),
    "devices": [
        {
            "name": str,
            "type": str,
            "stages": [int],
            "memory_bytes": (int, None),
            "capacity_bytes": Later((int, None)),
            "bytes": _BYTES,
            "busy_seconds_per_tick": float,
            "utilisation": float,
            "exchange_seconds_per_tick": Later(float),
        }
    ],
    "nodes": [
        {
            "name": str,
            "kind": str,
            "block": str,
            "stage": int,
            "parameters": int,
            "inputs": [str],
            "outputs": [[int]],
            "flops": _PASSES,
        }
    ],
    "edges": [
        {
            "producer": str,
            "consumer": str,
            "forward_bytes": float,
            "backward_bytes": float,
            "cut": bool,
            "capacity": (int, None),
        },
    ],
    "timeline": [
        {"stage": int, "device": str, "verb": str, "micro_batch": int, "start": float, "end": float},
    ],
    "assumptions": [str],
    "warnings": [str],
}
"""What every view may rely on: types as leaves, [item] for a list, {key: value} for an object, (a, b) for either."""
REQUIRED = tuple(key for key, shape in SHAPE.items() if not isinstance(shape, Later))
"""Keys that every plan has."""


def faults(value: Any, shape: Any = SHAPE, path: str = "the plan") -> Iterator[str]:
    """Yield where a document is not of its shape: "stages[2].depth is not a whole number"."""
    match shape:
        case Later():
            yield from faults(value, shape.shape, path)
        case dict() | Each() if isinstance(value, dict):
            yield from _faults_of_keys(value, shape, path)
        case [item] if isinstance(value, list):
            for index, one in enumerate(value):
                yield from faults(one, item, f"{path}[{index}]")
        case tuple():
            if all(next(faults(value, one), None) is not None for one in shape):
                yield f"{path} is not of a type that it may have"
        case dict() | list() | Each():
            yield f"{path} is not {'a list' if isinstance(shape, list) else 'an object'}"
        case _ if not _is(value, shape):
            yield f"{path} is not {_WORDS[shape]}"


def _faults_of_keys(value: Document, shape: Document | Each, path: str) -> Iterator[str]:
    if isinstance(shape, Each):
        for key, one in value.items():
            yield from faults(one, shape.shape, _below(path, key))
        return
    needed = (key for key, item in shape.items() if not isinstance(item, Later))
    yield from (f"{path} has no {key}" for key in needed if key not in value)
    for key in shape.keys() & value.keys():
        yield from faults(value[key], shape[key], _below(path, key))
    if shape is _BYTES or shape is _PASSES:  # all that they have is summed
        kind = int if shape is _BYTES else float
        others = value.keys() - shape.keys()
        yield from (f"{path}.{key} is not {_WORDS[kind]}" for key in sorted(others) if not _is(value[key], kind))


def _below(path: str, key: str) -> str:
    return key if path.startswith("the ") else f"{path}.{key}"


_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "a truth value", None: "null"}


def _is(value: Any, kind: type | None) -> bool:
    if kind is None:
        return value is None
    if kind in (int, float):
        numbers = int if kind is int else (int, float)
        return (
            isinstance(value, numbers) and not isinstance(value, bool) and abs(value) < _MOST  # of nan, too
        )
    return type(value) is kind
