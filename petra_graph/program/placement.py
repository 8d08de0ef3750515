"""Where a network runs: the device and process of every stage, and how far each stage runs ahead."""

from __future__ import annotations

from attrs import frozen

from petra_graph.program.devices import Device
from petra_graph.program.partition import Partition
from petra_graph.spec.model import Schedule


@frozen(kw_only=True)
class Placement(Partition):
    """Stages on devices: what the planner decides, and what programs and predictions follow from."""

    devices: tuple[Device, ...]
    """In the order of the pipeline, devices without a stage among them; each stage names one of them."""
    schedule: Schedule
    """The depth of every stage, or the schedule from which the depths follow."""
    guarantee: str = ""
    """How good the stages are, for people; "" where nothing was cut or placed by cost."""
