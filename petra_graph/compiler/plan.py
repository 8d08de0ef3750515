"""A plan as a value: what a terminal, a page, `--json`, `run --plan` and `petra_graph.plan` share.

Times are seconds, shares fractions, and stages are named by their `index`, from 1. Seconds are those of a micro-batch; None says that something is not known, or has no meaning there. As JSON, a plan has the same names.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import attr
from attrs import frozen

from petra_graph.compiler.memory import StageBytes
from petra_graph.compiler.timing import Event, Timing
from petra_graph.errors import SpecError
from petra_graph.program.simulation import StageSeconds
from petra_graph.spec.model import Keeps, KeepsByNode, Kind, RequestedSchedule, Schedule

VERSION = 2


@frozen(kw_only=True)
class PlannedStage:
    index: int
    nodes: tuple[str, ...]
    kind: Kind
    device: str
    depth: int
    staleness: float
    """In updates, once the pipeline is full."""
    parameters: int
    seconds: StageSeconds
    bytes: StageBytes
    """As if it had a device to itself."""


@frozen(kw_only=True)
class PlannedDevice:
    """A device that hosts a stage."""

    name: str
    type: str
    stages: tuple[int, ...]
    memory_bytes: int | None
    capacity_bytes: int | None
    bytes: StageBytes
    busy_seconds_per_tick: float
    utilisation: float
    exchange_seconds_per_tick: float

    @property
    def room(self) -> int | None:
        return self.memory_bytes or self.capacity_bytes

    @property
    def spare_bytes(self) -> int | None:
        return None if self.room is None else self.room - self.bytes.total


@frozen(kw_only=True)
class PlannedNode:
    name: str
    kind: Kind
    block: str
    stage: int
    parameters: int
    keeps: Keeps | None
    inputs: tuple[str, ...]
    outputs: tuple[tuple[int, ...], ...]


@frozen(kw_only=True)
class PlannedRun:
    epochs: int
    micro_batches_per_epoch: int | None
    epoch_seconds: float | None
    seconds: float | None


@frozen(kw_only=True)
class Totals:
    """Sums over all stages, and the bytes of all devices."""

    parameters: int
    trained: int
    bytes: StageBytes


@frozen(kw_only=True)
class Plan:
    """A placement with its memory and its times."""

    version: int = VERSION
    name: str
    method: str
    schedule: Schedule
    accumulation: int
    replicas: int
    micro_batch: int
    samples_per_update: int
    stages: tuple[PlannedStage, ...]
    totals: Totals
    paper_accounting: Mapping[str, int]
    timing: Timing
    run: PlannedRun
    devices: tuple[PlannedDevice, ...]
    nodes: tuple[PlannedNode, ...]
    timeline: tuple[Event, ...] = ()
    """The first operations, if they were asked for."""
    certainty: str
    """Where its times are from, and how far such plans were from runs."""
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Each with the key to change, the most important first."""

    def as_json(self) -> dict[str, Any]:
        return attr.asdict(self, retain_collection_types=False)


class Figures(NamedTuple):
    """What plans are chosen by: also staleness, in updates, and the bytes of the fullest device."""

    samples_per_second: float
    staleness: float
    memory_peak: int


@frozen(kw_only=True)
class ComparedPlan:
    """A row of plans compared: what was planned, and its figures; None where there is no plan, or where a figure has no meaning."""

    name: str | None = None
    """Of a given specification; None: a method of the compared one, or another use of its devices."""
    set: tuple[str, ...] = ()
    method: str | None = None
    schedule: RequestedSchedule | None = None
    keep: str | KeepsByNode | None = None
    replicas: int | None = None
    devices: int | None = None
    memory_peak: int | None = None
    memory_total: int | None = None
    fits: bool | None = None
    staleness: float | None = None
    samples_per_second: float | None = None
    speedup: float | None = None
    note: str = ""

    @property
    def figures(self) -> Figures | None:
        if not self.samples_per_second or self.staleness is None or self.memory_peak is None or self.fits is False:
            return None
        return Figures(self.samples_per_second, self.staleness, self.memory_peak)


@frozen(kw_only=True)
class Comparison:
    """Plans side by side; the recommended row is counted from 0."""

    name: str
    rows: tuple[ComparedPlan, ...]
    recommended: int | None = None
    speedup_over: str
    assumptions: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return attr.asdict(self, retain_collection_types=False)


def read_plan(text: str | bytes, source: str) -> Plan:
    """Read a plan that was saved; SpecError: it is not a plan, is one of another version, or is damaged, and where."""
    from cattrs import Converter, transform_error  # takes a tenth of a second to import, which new plans need not

    def wrong(what: str, hint: str = "save one with `petra-graph plan SPEC --json`") -> SpecError:
        return SpecError(f"{source} {what}", hint)

    again, converter = "restore it, or make it again", Converter()
    converter.register_structure_hook_func(
        lambda one: one == Schedule, lambda value, _: tuple(value) if isinstance(value, list) else value
    )
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(f"is no JSON: {error}") from error
    if not isinstance(values, dict) or values.get("version") != VERSION:
        raise wrong(f"is not a plan of version {VERSION}")
    try:
        plan = converter.structure(values, Plan)
    except Exception as error:  # cattrs raises many kinds
        raise wrong(f"is damaged: {transform_error(error)[0]}", again) from error
    # What shows a plan looks for the fullest device, and for the device of every stage.
    if not plan.stages or {stage.device for stage in plan.stages} != {device.name for device in plan.devices}:
        raise wrong("is damaged: its devices are not those of its stages", again)
    return plan
