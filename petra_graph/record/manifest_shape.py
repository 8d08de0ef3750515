"""What a checkpoint's manifest and the facts of its stages' files must look like, whoever wrote them; a digest says nothing of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from petra_graph.program.json_shape import Each, Later, faults

_MOST = 64
"""Streams of a message or an input are fewer."""
_NUMBERS = Each(float)
_STAGE = {"nodes": [str], "depth": int}
_FILE = {"name": str, "stage": int, "replica": int, "bytes": int, "sha256": str, "finite": bool}
_EPOCH = {
    "epoch": int,
    "train": _NUMBERS,
    "test": (_NUMBERS, None),
    "samples_per_second": float,
    "learning_rate": float,
}
_POSITION = {
    "epoch": int,
    "evaluates": bool,
    "micro_batches_per_epoch": int,
    "micro_batches": int,
    "since": int,
    "updates": int,
    "seconds": float,
    "epoch_began": [float],
    "train": (_NUMBERS, None),
    "resumed_from": [int],
    "epochs": [_EPOCH],
    "metrics_bytes": int,
    "callbacks": Later({}),
}
_MANIFEST = {
    "format": int,
    "at": int,
    "run": str,
    "versions": Each(str),
    "pipeline": {
        "method": {"accumulation": int, "flush": str},
        "precision": {},
        "stages": [_STAGE],
        "parameters": Each(int),
        "replicas": int,
        "batch": int,
    },
    "optimizer": {"name": str, "options": {}},
    "folders": [str],
    "position": _POSITION,
    "metrics": _NUMBERS,
    "files": [_FILE],
}
_FACTS = {
    "index": int,
    "at": int,
    "updates": int,
    "window": int,
    "weight": float,
    "optimizer": Later(Each({})),
    "groups": Later([{}]),
    "encoded": Later(Each(str)),
    "strides": Later(Each([int])),
    "counts": Later(Each(int)),
    "inputs": Each([int]),
    "sent": [int],
    "messages": [[(str, int)]],
    "versions": Later({"current": int, "of": [[int]], "copies": Each([str])}),
    "meters": Later({"samples": int, "weight": float, "counted": Later(float), "sums": {}}),
}


def faults_of_manifest(values: Any) -> Iterator[str]:
    """Yield what no manifest has: another shape first, then numbers that contradict each other."""
    if found := list(faults(values, _MANIFEST, "the manifest")):
        yield from found
        return
    pipeline, position = values["pipeline"], values["position"]
    stages, per_epoch = pipeline["stages"], position["micro_batches_per_epoch"]
    first = (position["epoch"] - 1) * per_epoch
    written = {(file["stage"], file["replica"]) for file in values["files"]}
    for right, fault in (
        (position.keys() <= _POSITION.keys() and len(position["epoch_began"]) == 2, "position has other values"),  # noqa: PLR2004  seconds and micro-batches
        (all(report.keys() == _EPOCH.keys() for report in position["epochs"]), "position.epochs has other values"),
        (min(position[key] for key in ("since", "updates", "metrics_bytes")) >= 0, "position has negative values"),
        (per_epoch > 0 and first >= 0, "position is in no epoch"),
        (values["at"] == position["micro_batches"], "at is not position.micro_batches"),
        (first <= values["at"] <= first + per_epoch, "at is not in position.epoch"),
        (min([pipeline["method"]["accumulation"], *(stage["depth"] for stage in stages)]) > 0, "a depth is zero"),
        (_names(stages) == sorted(pipeline["parameters"]), "pipeline.stages has other nodes than pipeline.parameters"),
        (
            len(written) == len(values["files"]) == len(stages) * pipeline["replicas"]
            and all(0 < stage <= len(stages) and 0 <= replica < pipeline["replicas"] for stage, replica in written),
            "files are not those of the stages",
        ),
    ):
        if not right:
            yield fault


def faults_of_stage(facts: Any, shapes: Mapping[str, Sequence[int]], pipeline: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a stage's file is not of its shape."""
    if found := list(faults(facts, _FACTS, "the file")):
        yield from found
        return
    own = {name.removeprefix("parameters/"): shape for name, shape in shapes.items() if name.startswith("parameters/")}
    for node in pipeline["stages"][facts["index"] - 1]["nodes"]:
        count = sum(prod(shape) for name, shape in own.items() if name.startswith(f"{node}/"))
        if count != pipeline["parameters"][node]:
            yield f"node {node} has {count} parameters"
    yield from (f"it has no parameters/{name}" for name in facts.get("optimizer", {}) if name not in own)
    encoded = facts.get("encoded", {})
    needed = [f"optimizer/{name}/{key}" for name, key, value in _states(facts) if isinstance(value, dict)]
    needed += [
        f"{name}/{index}" for name, count in facts.get("counts", {}).items() for index in range(min(count, _MOST))
    ]
    needed = [f"{name}/payload" if name in encoded else name for name in needed]
    yield from (f"it has no {name}" for name in needed if name not in shapes)
    for name, strides in facts.get("strides", {}).items():
        shape = shapes.get(name, ())
        reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=False))
        if len(strides) != len(shape) or min(strides, default=0) < 0 or (prod(shape) and reach != prod(shape)):
            yield f"{name} has strides {strides}"
    for name, shape in shapes.items():
        kind, _, parameter = name.partition("/")
        if kind == "gradients" and list(own.get(parameter, ())) != list(shape):
            yield f"{name} is {list(shape)}"


def _states(facts: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for name, state in facts.get("optimizer", {}).items():
        yield from ((name, key, value) for key, value in state.items())


def _names(stages: list[Mapping[str, Any]]) -> list[str]:
    return sorted(node for stage in stages for node in stage["nodes"])
