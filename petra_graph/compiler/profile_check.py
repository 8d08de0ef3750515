"""The profile that a specification names, checked against the network that is planned with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.program.costs import OPERATIONS, CostTable, Profile
from petra_graph.record.profile import read_profile
from petra_graph.spec.model import Spec

_PATH = ("partition", "profile")
_HINT = "take one of this specification, on such a device: petra-graph profile SPEC"


def checked_profile(spec: Spec, graph: NodeGraph, costs: CostTable, device_kind: str) -> Profile | None:
    """Read the profile; None where the specification names none.

    Args:
        spec: the specification.
        graph: its network.
        costs: the costs of every node.
        device_kind: kind of the first device, "cpu" or "cuda".

    Raises:
        SpecError: the profile cannot be read, or is of another network, micro-batch, precision or kind of device.
    """
    if spec.partition.profile is None:
        return None
    profile = read_profile(Path(spec.partition.profile))
    problems = [*_other_conditions(profile, spec, device_kind), *_other_network(profile, graph, costs)]
    if problems:
        raise SpecError(problems)
    return profile


def _other_conditions(profile: Profile, spec: Spec, device_kind: str) -> Iterator[Problem]:
    for condition, profiled, planned in (
        ("micro-batches of", profile.micro_batch, spec.data.batch),
        ("precision.compute =", profile.compute, spec.precision.compute),
        ("run.threads =", profile.threads, spec.run.threads),
        ("a device of kind", profile.kind, device_kind),
    ):
        if profiled != planned:
            message = f"the profile is of {condition} {shown(profiled)}, not {shown(planned)}"
            yield Problem(message=message, hint=_HINT, path=_PATH)


def _other_network(profile: Profile, graph: NodeGraph, costs: CostTable) -> Iterator[Problem]:
    """Yield the first node that the profile lacks or has otherwise."""
    for name, node in graph.nodes.items():
        cost = costs.nodes[name]
        operations = profile.nodes.get(name)
        if operations is None:
            message = f"the profile has no node {shown(name)}"
        elif profile.sizes.get(name) != (cost.parameters, sum(cost.output_bytes)):
            message = f"the profile's node {shown(name)} has other sizes than the network's"
        elif missing := OPERATIONS[node.kind] - operations.keys():
            message = f"the profile has not timed {', '.join(sorted(missing))} of node {shown(name)}"
        else:
            continue
        yield Problem(message=message, hint=_HINT, path=_PATH)
        return
