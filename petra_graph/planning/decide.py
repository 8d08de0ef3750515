"""What a specification leaves open, decided: stages, places, depths; and on which devices that are here.

    stages     "per-block", or listed: as they are; a number: cut by cost
    devices    as many as stages: one each; fewer: by cost, or where memory has no limit and one device is all, there
    schedule   as named; "auto": the least depths at full speed
    processes  each is a device, and hosts consecutive stages: those of a planned device, or by cost

Costs are measured only where one of these asks for them. Cuts, places and depths follow from the devices that the
specification speaks of, present or not, so that a plan and its run, on whatever runtime, are of the same stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve, frozen

from petra_graph.compiler.lower import MessageTypes
from petra_graph.compiler.method_check import check_depths, method_and_schedule
from petra_graph.compiler.partition import partition, per_block
from petra_graph.compiler.place import Cut, checked, cut, placed, resolved_schedule
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.processes import check_processes
from petra_graph.errors import NoFeasiblePlan
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.devices import planned_devices
from petra_graph.planning.inputs import planner_inputs_of
from petra_graph.planning.remedies import working_remedies
from petra_graph.program.costs import CostTable
from petra_graph.program.devices import Device
from petra_graph.program.method import Method
from petra_graph.program.partition import Partition
from petra_graph.spec.model import AskedSchedule, Schedule, Spec


@frozen(kw_only=True)
class Decided:
    """Stages, places and depths."""

    hosts: Partition
    """The stages, on devices as the planner counts them: what works by itself is one."""
    schedule: Schedule
    devices: tuple[Device, ...]
    """Those, in the order of the pipeline; those without a stage too."""
    guarantee: str
    """How good the cut is, for people; "" where nothing was cut or placed by cost."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Each stage's place among the devices."""
        place = {device.name: index for index, device in enumerate(self.devices)}
        return tuple(place[stage.device] for stage in self.hosts.stages)

    def named(self, devices: Sequence[str]) -> Partition:
        """Return the stages with other names of their devices, one for each stage."""
        stages = zip(self.hosts.stages, devices, strict=True)
        return Partition(stages=tuple(evolve(stage, device=device) for stage, device in stages))


@frozen(kw_only=True)
class Decider:
    """A network whose graph, shapes and method are right."""

    graph: NodeGraph
    spec: Spec
    chosen: tuple[Method, AskedSchedule]
    messages: MessageTypes
    costs: Callable[[NodeGraph, Spec], CostTable]
    """Measures what nodes cost."""
    devices: tuple[Device, ...]
    """Those that the specification speaks of."""

    def decide(self) -> Decided:
        """Decide by cost what the specification leaves open.

        Raises:
            SpecError: there are fewer nodes than stages, or depths do not fit the stages.
            NoFeasiblePlan: nothing found keeps the devices' memory limits.
        """
        made = self._cut()
        schedule = self.chosen[1]
        check_depths(schedule, self.graph, made.partition)
        if schedule == "auto":
            schedule = resolved_schedule(self._setting(self.devices), made.partition)
        return Decided(hosts=made.partition, schedule=schedule, devices=self.devices, guarantee=made.guarantee)

    def decide_or_advise(self) -> Decided:
        """Do the same, and where nothing fits, say which changes of the specification would make it fit.

        Raises:
            SpecError, NoFeasiblePlan: as `decide`.
        """
        try:
            return self.decide()
        except NoFeasiblePlan as error:
            hint = working_remedies(self.graph, self.spec, self._fits)
            raise NoFeasiblePlan([evolve(problem, hint=hint) for problem in error.problems]) from None

    def _fits(self, graph: NodeGraph, spec: Spec) -> bool:
        """Whether another network or specification can be planned."""
        chosen = method_and_schedule(spec.method, spec.optimizer.clip)
        devices = planned_devices(spec.partition)
        messages = evolve(self.messages, precision=spec.precision, batch=spec.data.batch)
        evolve(self, graph=graph, spec=spec, chosen=chosen, messages=messages, devices=devices).decide()
        return True

    def here(self, decided: Decided, present: Sequence[str]) -> Decided:
        """Return the same stages on devices that are here: each planned one in its order, or all on the one there is."""
        names = tuple(dict.fromkeys(present))
        planned = [device.name for device in self.devices]
        place = dict(zip(planned, names if len(names) > 1 else names * len(planned), strict=True))
        hosts = decided.named([place[stage.device] for stage in decided.hosts.stages])
        devices = self.devices if list(names) == planned else planned_devices(self.spec.partition, names)
        return evolve(decided, hosts=hosts, devices=devices)

    def among(self, decided: Decided, processes: int) -> Decided:
        """Return the same stages on as many devices as processes, by cost where the planned ones are fewer or more.

        Which process hosts a stage changes when things happen, and no number.

        Raises:
            SpecError: there are more processes than stages.
        """
        stages = decided.hosts.stages
        check_processes(len(stages), processes)
        if len({stage.device for stage in stages}) == processes == len(self.devices):
            return decided
        devices = tuple(evolve(self.devices[0], name=f"rank {rank}", memory_bytes=None) for rank in range(processes))
        setting = evolve(self._setting(devices), schedule=decided.schedule)
        made = placed(setting, [stage.nodes for stage in stages], self.spec.partition.strategy)
        return evolve(decided, hosts=made.partition, devices=devices, guarantee=made.guarantee)

    def _cut(self) -> Cut:
        asked, devices = self.spec.partition, self.devices
        if isinstance(asked.stages, int):
            return cut(self._setting(devices), asked.stages, asked.strategy)
        cuts = per_block(self.graph) if asked.stages == "per-block" else asked.stages
        limited = any(device.memory_bytes is not None for device in devices)
        if isinstance(asked.devices, tuple) and len(asked.devices) == len(cuts):
            made = partition(self.graph, cuts, asked.devices)
            return checked(self._setting(devices), made) if limited else Cut(partition=made, guarantee="")
        if not limited and (len(devices) == 1 or len(devices) >= len(cuts)):
            names = [device.name for device in devices[: len(cuts)]]
            return Cut(partition=partition(self.graph, cuts, names), guarantee="")
        return placed(self._setting(devices), cuts, asked.strategy)

    def _setting(self, devices: tuple[Device, ...]) -> PlannerInputs:
        costs = self.costs(self.graph, self.spec)
        return planner_inputs_of(self.graph, self.spec, self.chosen, costs, messages=self.messages, devices=devices)
