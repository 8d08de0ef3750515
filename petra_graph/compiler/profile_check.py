"""Whether a profile's seconds are those of a specification: its network, its settings and its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import evolve

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.program.device_types import DeviceType
from petra_graph.program.node_costs import OPERATIONS, CostTable, Profile
from petra_graph.record.profile_files import read_profile
from petra_graph.spec.model import Spec
from petra_graph.units import seconds

_PATH = ("partition", "profile")
_HINT = "take one of this specification, on such a device: petra-graph profile SPEC"
_SHARE = 0.8
"""The part of the seconds by the clock that the processor's own must reach; an idle one reaches nearly all."""
_ANY_VALUE = "optimizer.options.lr"
"""A factor that every update multiplies by, 0 or not."""


def settings_of(spec: Spec, optimizer: tuple[str, Any], loss: str) -> dict[str, Any]:
    """Return the settings on which the seconds of operations depend, by key, as JSON.

    Args:
        optimizer: the plugin's name, and its options with their defaults.
    """
    name, options = optimizer
    precision = attrs.asdict(spec.precision, filter=lambda key, _: key.name not in {"channel_dtype", "fp32_precision"})
    given = {
        **{f"precision.{key}": value for key, value in precision.items()},
        **({"precision.fp32_precision": "ieee"} if spec.precision.products == "ieee" else {}),
        "optimizer.name": name,
        **{f"optimizer.options.{key}": value for key, value in attrs.asdict(options).items()},
        "optimizer.clip.by": None if spec.optimizer.clip is None else spec.optimizer.clip.by,
        "loss.name": loss,
        **({"init.freeze": spec.init.freeze} if spec.init.freeze else {}),
        **({"run.compile": True} if spec.run.compile else {}),
    }
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in given.items() if key != _ANY_VALUE
    }


def taken_under_load(profile: Profile) -> str:
    """Return a sentence for people where other programs used the processor while the profile was taken, else ""."""
    wall, cpu = profile.wall_seconds, profile.cpu_seconds
    if wall is None or cpu is None or cpu >= _SHARE * wall:
        return ""
    return (
        f"the profile's operations took {seconds(wall)}, but the processor only worked on them for {seconds(cpu)}: other programs "
        "used it too; take the profile again on a quiet machine, which is faster"
    )


def checked_profile(
    spec: Spec, graph: NodeGraph, costs: CostTable, settings: Mapping[str, Any], device: DeviceType
) -> Profile | None:
    """Read the profile; None where the specification names none.

    Args:
        settings: of `settings_of`.
        device: type of the first device.

    Raises:
        SpecError: the profile cannot be read, or is of another network, of other settings or of another kind of device.
    """
    if spec.partition.profile is None:
        return None
    try:
        profile = read_profile(Path(spec.partition.profile).expanduser())
    except SpecError as error:
        raise SpecError([evolve(problem, path=_PATH) for problem in error.problems]) from None
    problems = [*_other_conditions(profile, spec, device), *_other_settings(profile, settings)]
    problems += _other_network(profile, graph, costs)
    if problems:
        raise SpecError(problems)
    return profile


def _other_conditions(profile: Profile, spec: Spec, device: DeviceType) -> Iterator[Problem]:
    conditions: list[tuple[str, Any, Any]] = [
        ("micro-batches of", profile.micro_batch, spec.data.batch),
        ("run.threads =", profile.threads, spec.run.threads),
    ]
    if profile.kind != device.kind:
        conditions.append(("a device of kind", profile.kind, device.kind))
    else:
        conditions.append(("a device of type", profile.device_type, device.name))
    for condition, profiled, planned in conditions:
        if profiled != planned:
            message = f"the profile is of {condition} {shown(profiled)}, not {shown(planned)}"
            yield Problem(message=message, hint=_HINT, path=_PATH)


def _other_settings(profile: Profile, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the settings that differ; the options of another optimizer are not listed as well."""
    other_optimizer = profile.settings.get("optimizer.name") != settings["optimizer.name"]
    for key in dict.fromkeys((*settings, *profile.settings)):
        if other_optimizer and key.startswith("optimizer.options."):
            continue
        profiled, planned = profile.settings.get(key), settings.get(key)
        if not _as_fast(profiled, planned):
            one, other = ("none" if value is None else shown(value) for value in (profiled, planned))
            message = f"the profile is of {key} = {one}, not {other}"
            yield Problem(message=message, hint=_HINT, path=_PATH)


def _as_fast(one: Any, other: Any) -> bool:
    """Whether two values of a setting take the same operations: numbers that are both zero, or both not."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_as_fast, one, other))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return bool((one == 0) == (other == 0) if numbers else one == other)


def _other_network(profile: Profile, graph: NodeGraph, costs: CostTable) -> Iterator[Problem]:
    """Yield the first node that the profile does not have, or not with the same sizes."""
    for name, node in graph.nodes.items():
        cost = costs.nodes[name]
        operations = profile.nodes.get(name)
        if operations is None:
            message = f"the profile has no node {shown(name)}"
        elif profile.sizes.get(name) != (cost.parameters, sum(cost.output_bytes)):
            message = f"the profile's node {shown(name)} has other sizes than the network's"
        elif missing := OPERATIONS[node.kind] - operations.keys():
            message = f"the profile has not timed {', '.join(sorted(missing))} of node {shown(name)}"
        elif profile.kind == "cuda" and (missing := OPERATIONS[node.kind] - profile.host.get(name, {}).keys()):
            message = f"the profile has not timed the host for {', '.join(sorted(missing))} of node {shown(name)}"
        else:
            continue
        yield Problem(message=message, hint=_HINT, path=_PATH)
        return
