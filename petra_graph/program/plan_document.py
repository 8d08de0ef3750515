"""A plan as a JSON document, which the compiler writes, and which other tools and all views of a plan read.

`SHAPE` is the one description of its keys: what is read is checked against it, and a test holds what is written to it.
Times are seconds, bytes integers, shares fractions. A stage is found by its `index`, which nodes, devices and the timeline name.
Keys are added and never changed. The shapes of values:

    str, int, float, bool       leaves; a whole number is a number, too
    [item]                      a list of such items
    {key: value}                an object with these keys, and any others
    Each(value)                 an object with any keys
    (a, b, None)                either

Decision: not cattrs, which reads profiles. Each of its readers would need a hook so that nothing is converted ("3" is no
number), and one more for messages that name the place; and views show the document itself, with keys of later versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeAlias, get_args

from attrs import frozen

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.program.channels import Carrier
from petra_graph.program.schedule import Verb
from petra_graph.spec.model import Keeps, Kind, ScheduleName

_MOST = 2**63
"""A number beyond it cannot count bytes or operations."""


@frozen
class Later:
    """The shape of a value whose key was added later: older files do not have it."""

    shape: Any


@frozen
class Each:
    """The shape of an object whose keys are any, some of which it has, and whose values have one shape."""

    shape: Any
    needed: Sequence[str] = ()


def faults(value: Any, shape: Any, path: str) -> Iterator[str]:
    """Yield where a value is not of its shape: "stages[2].depth is not a whole number".

    Args:
        value: as `json.loads` returns it.
        shape: what it should be.
        path: the value itself, for messages: "the plan".
    """
    match shape:
        case Later():
            yield from faults(value, shape.shape, path)
        case dict() | Each() if isinstance(value, dict):
            yield from _faults_of_keys(value, shape, path)
        case [item] if isinstance(value, list):
            for index, one in enumerate(value):
                yield from faults(one, item, f"{path}[{index}]")
        case tuple():
            if all(next(faults(value, one, path), None) is not None for one in shape):
                yield f"{path} is not of a type that it may have"
        case dict() | list() | Each():
            yield f"{path} is not {'a list' if isinstance(shape, list) else 'an object'}"
        case _ if not _is(value, shape):
            yield f"{path} is not {_WORDS[shape]}"


def _faults_of_keys(value: dict[str, Any], shape: dict[str, Any] | Each, path: str) -> Iterator[str]:
    if isinstance(shape, Each):
        needed, shapes = shape.needed, dict.fromkeys(value, shape.shape)
    else:
        needed, shapes = [key for key, item in shape.items() if not isinstance(item, Later)], shape
    yield from (f"{path} has no {key}" for key in needed if key not in value)
    for key in shapes:
        if key in value:
            yield from faults(value[key], shapes[key], key if path.startswith("the ") else f"{path}.{key}")


_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "a truth value", None: "null"}


def _is(value: Any, kind: type | None) -> bool:
    if kind in (int, float):
        numbers = int if kind is int else (int, float)
        return (
            isinstance(value, numbers) and not isinstance(value, bool) and abs(value) < _MOST  # of nan, too
        )
    return value is None if kind is None else type(value) is kind


Document: TypeAlias = dict[str, Any]
"""A whole plan, or one of its objects such as a stage."""

VERSION = 1
"""Of the document's keys and their meaning; a key that is added changes none."""

_PASSES = Each(float, needed=("forward", "backward"))
"""Of a micro-batch; a stage's and a node's seconds have an `update`, and a stage's the `exchange` in it, which is not work."""
_BYTES = Each(int, needed=("total",))
"""parameters, gradients, optimizer, input_buffer, parameter_buffer, graphs, working, channels, total: of the moment when a device
holds most, or a stage as if it had a device of its own; those of `totals` are the sum over devices."""
SHAPE: dict[str, Any] = {
    "version": Later(int),
    "name": str,
    "method": str,
    "schedule": (str, [int]),
    "accumulation": int,
    "replicas": Later(int),
    "micro_batch": int,
    "samples_per_update": Later(int),  # of all replicas
    "stages": [
        {
            "index": int,  # from 1
            "nodes": [str],
            "kind": str,
            "device": str,
            "depth": int,
            "distance": Later(int),
            "staleness": float,  # updates, in the mean
            "parameters": int,
            "flops": _PASSES,
            "seconds": _PASSES,
            "bytes": _BYTES,
            "channel_bytes": _PASSES,  # what it sends
        }
    ],
    "totals": {"parameters": int, "trained": Later(int), "bytes": _BYTES},
    "paper_accounting": {"model": float, "input_buffer": float, "parameter_buffer": float, "total": float},
    "timing": {
        "tick_seconds": float,
        "samples_per_second": float,
        "speedup": Later((float, None)),
        "speedup_over": Later((str, None)),
        "bubble_fraction": float,
        "exposed_communication": Later({"all_reduce": float, "links": float}),  # parts of the bubble
        "utilisation": [float],  # in the order of devices
        "fill_seconds": float,
        "drain_seconds": float,
        "overhead_seconds": Later(float),  # of a run between two drains
        "outside_seconds": Later(float),  # of a profile
        "exact": Later(bool),
        "limited_by": Later([int]),  # stages
    },
    "run": Later(  # training alone, without evaluations; null where the number of samples is not known
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
            "memory_bytes": (int, None),  # a limit
            "capacity_bytes": Later((int, None)),  # of the type
            "bytes": _BYTES,
            "busy_seconds_per_tick": float,
            "utilisation": float,
            "exchange_seconds_per_tick": Later(float),  # waiting for the all-reduce of replicas
        }
    ],
    "nodes": [
        {
            "name": str,
            "kind": str,
            "block": str,
            "stage": int,
            "parameters": int,
            "keeps": Later((str, None)),  # between its passes; null for the head
            "inputs": [str],
            "outputs": [[int]],  # shapes
            "flops": _PASSES,
            "seconds": Later(_PASSES),
        }
    ],
    "edges": [
        {
            "producer": str,
            "consumer": str,
            "forward_bytes": float,
            "backward_bytes": float,
            "cut": bool,
            "capacity": (int, None),  # messages that each direction holds; null on one device
            "transport": Later((str, None)),  # if each device has a process of its own; null inside a stage
        },
    ],
    "timeline": [
        {"stage": int, "device": str, "verb": str, "micro_batch": int, "start": float, "end": float},
    ],
    "other_uses": Later((int, None)),  # of the devices, which were looked at
    "delay_aware": Later([str]),  # the plugins that are told the staleness of their stage
    "certainty": Later(  # null where nothing is known
        {
            "samples_per_second_low": Later(float),  # as far as such plans were from what runs measured
            "samples_per_second_high": Later(float),
            "spare_bytes": (int, None),  # of the fullest device
        }
    ),
    "assumptions": [str],
    "warnings": [str],
}

_SAVE = "save one with `petra-graph plan SPEC --json`"
_SHOWN = 5
"""Faults of a damaged plan that are listed."""
_LIKELY_PLAN = {"name", "stages"}


def read_document(text: str | bytes, source: str) -> Document:
    """Read a plan that was saved.

    Args:
        text: the JSON text.
        source: where it comes from, for messages.

    Raises:
        SpecError: it is not a plan, or is one of another version.
    """
    try:
        return check_document(json.loads(text), source)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{source} is no JSON: {error}", _SAVE) from error


def check_document(document: Any, source: str) -> Document:
    """Return a document that is a plan.

    Raises:
        SpecError: as `read_document`.
    """
    hint = _SAVE
    if not isinstance(document, dict):
        raise SpecError(f"{source} is not a plan: it holds a {type(document).__name__}", hint)
    if document.keys() >= _LIKELY_PLAN and (version := document.get("version")) != VERSION:
        upgrade = "upgrade petra-graph, or " if type(version) is int and version > VERSION else ""
        stated = "no version" if version is None else f"version {shown(version)}"
        raise SpecError(f"{source} is a plan of {stated}, and this petra-graph reads version {VERSION}", upgrade + hint)
    required = {key for key, shape in SHAPE.items() if not isinstance(shape, Later)}
    if missing := sorted(required - document.keys()):
        raise SpecError(f"{source} is not a plan: it has no {', '.join(missing)}", hint)
    found = list(islice(faults(document, SHAPE, "the plan"), _SHOWN))
    if found := found or list(islice(_loose_ends(document), _SHOWN)):
        raise SpecError([Problem(message=f"{source} is damaged: {fault}", hint=hint) for fault in found])
    return document


def room(device: Document) -> int | None:
    """Return the bytes that a device may use: its limit, or else its type's memory; None where neither is known."""
    found: int | None = device["memory_bytes"] or device.get("capacity_bytes")
    return found


def excess(device: Document) -> int:
    """Return by how many bytes a device holds more than it may; 0 where it does not, or where that is not known."""
    held: int = device["bytes"]["total"]
    return max(0, held - (room(device) or held))


def _loose_ends(document: Document) -> Iterator[str]:
    """Yield names and numbers in a document that nothing has."""
    stages = {stage["index"] for stage in document["stages"]}
    nodes = {node["name"]: node["stage"] for node in document["nodes"]}
    devices = {device["name"] for device in document["devices"]}
    if not stages or not devices or not nodes:
        yield "it has no stages, no devices or no nodes"
    used = [*nodes.values(), *chain.from_iterable(device["stages"] for device in document["devices"])]
    used += [block["stage"] for block in document["timeline"]]
    yield from (f"there is no stage {index}" for index in dict.fromkeys(used) if index not in stages)
    ends = (edge[end] for edge in document["edges"] for end in ("producer", "consumer"))
    hosts = (placed["device"] for placed in chain(document["stages"], document["timeline"]))
    for what, named, known in (
        ("node", chain(ends, *(stage["nodes"] for stage in document["stages"])), nodes),
        ("device", hosts, devices),
        ("kind", (node["kind"] for node in document["nodes"]), get_args(Kind)),
        ("operation", (block["verb"] for block in document["timeline"]), get_args(Verb)),
        ("transport", (edge["transport"] for edge in document["edges"] if edge.get("transport")), get_args(Carrier)),
        ("way to keep", (node["keeps"] for node in document["nodes"] if node.get("keeps")), get_args(Keeps)),
        ("schedule", [document["schedule"]] * isinstance(document["schedule"], str), get_args(ScheduleName)),
    ):
        yield from (f"there is no {what} {shown(name)}" for name in dict.fromkeys(named) if name not in known)
