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


def settings_of(spec: Spec, optimizer: tuple[str, Any], loss: str) -> dict[str, Any]:
    """Return the tables on which the seconds of operations depend, as JSON.

    Of a number only counts whether it is zero: other values take the same operations.

    Args:
        optimizer: the plugin's name, and its options with their defaults.
    """
    name, options = optimizer
    precision = attrs.asdict(spec.precision, filter=lambda key, _: key.name not in {"channel_dtype", "fp32_precision"})
    own = {key: _zero_or_not(value) for key, value in attrs.asdict(options).items() if key != "lr"}
    return {
        "precision": precision | {"tf32": spec.precision.products == "tf32"},
        "optimizer": {
            "name": name,
            "options": own,
            "clip": None if spec.optimizer.clip is None else spec.optimizer.clip.by,
        },
        "loss": loss,
        "run.compile": spec.run.compile,
        "init.freeze": [*spec.init.freeze] if spec.init.freeze else None,
    }


def _zero_or_not(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_zero_or_not(one) for one in value]
    return value != 0 if isinstance(value, int | float) else value


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
    compared: list[tuple[str, Any, Any]] = [
        ("micro-batches of", profile.micro_batch, spec.data.batch),
        ("run.threads =", profile.threads, spec.run.threads),
        ("a device of kind", profile.kind, device.kind),
    ]
    if profile.kind == device.kind:
        compared.append(("a device of type", profile.device_type, device.name))
    tables = dict.fromkeys((*settings, *profile.settings))
    compared += [(f"[{table}] =", profile.settings.get(table), settings.get(table)) for table in tables]
    said = [f"of {what} {shown(one)}, not {shown(other)}" for what, one, other in compared if one != other]
    found = [f"the profile is {text}" for text in said] + list(_other_network(profile, graph, costs))
    if found:
        raise SpecError([Problem(message=message, hint=_HINT, path=_PATH) for message in found])
    return profile


def _other_network(profile: Profile, graph: NodeGraph, costs: CostTable) -> Iterator[str]:
    """Yield the first node that the profile does not have, not with the same sizes, or not timed in all operations."""
    for name, node in graph.nodes.items():
        cost, operations = costs.nodes[name], profile.nodes.get(name)
        if operations is None:
            yield f"the profile has no node {shown(name)}"
            return
        if profile.sizes.get(name) != (cost.parameters, sum(cost.output_bytes)):
            yield f"the profile's node {shown(name)} has other sizes than the network's"
            return
        timed = operations.keys() & (profile.host.get(name, {}).keys() if profile.kind == "cuda" else operations.keys())
        if missing := OPERATIONS[node.kind] - timed:
            yield f"the profile has not timed {', '.join(sorted(missing))} of node {shown(name)}"
            return
