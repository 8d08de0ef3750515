"""Settings of the test pipelines, on devices where every operation takes as long as a test says."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from attrs import evolve

from petra_graph.compiler.memory import EncodedShare
from petra_graph.compiler.planner_inputs import Clock, PlannerInputs
from petra_graph.program.device_types import DEVICE_TYPES, Device, Link
from petra_graph.program.method import METHODS
from petra_graph.program.node_costs import CostTable, Operation
from petra_graph.spec.model import NodeSpec, RequestedSchedule
from tests.support.costs import costs, messages_of
from tests.support.pipelines import CHAIN, built_graph

UNITS: Mapping[Operation, float] = {
    "forward": 1.0,
    "reverse": 3.0,
    "recompute": 3.0,
    "record": 1.0,
    "replay": 2.0,
    "invert": 1.0,
    "forward_backward": 3.0,
}
"""Of work, as the paper counts them; updates take nothing."""


@cache
def chain_costs() -> CostTable:
    return costs(CHAIN, (8,))


def devices(count: int, *, memory: int | None = None, link: Link | None = None) -> tuple[Device, ...]:
    one = Device(name="", type=DEVICE_TYPES["cpu"], memory_bytes=memory, link=link or Link())
    return tuple(evolve(one, name=f"d{index}") for index in range(count))


def setting(
    count: int = 1,
    *,
    method: str = "petra",
    schedule: RequestedSchedule | None = None,
    accumulation: int = 1,
    weights: Mapping[str, float] | None = None,
    memory: int | None = None,
    link: Link | None = None,
    nodes: Sequence[NodeSpec] = CHAIN,
    table: CostTable | None = None,
    **changes: Any,
) -> PlannerInputs:
    """Return the chain's setting on `count` devices; `weights` says which nodes take longer than others."""
    chosen, heavier = METHODS[method], weights or {}
    clock = Clock(
        device={
            one.name: {operation: heavier.get(one.name, 1.0) * unit for operation, unit in UNITS.items()}
            for one in nodes
        }
    )
    hosts = devices(count, memory=memory, link=link)
    return PlannerInputs(
        **{
            "graph": built_graph(nodes),
            "costs": table or chain_costs(),
            "method": chosen,
            "schedule": schedule or chosen.schedules[0],
            "accumulation": accumulation,
            "messages": messages_of(table or chain_costs()),
            "transport": EncodedShare(),
            "devices": hosts,
            "clocks": dict.fromkeys((device.name for device in hosts), clock),
            **changes,
        }
    )
