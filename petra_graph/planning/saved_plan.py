"""A plan that was saved: read, compared with what is to run, and taken as its placement.

Decision: a plan only fixes what the specification leaves open, as a resolved specification does. If the two state different things,
neither wins: the run is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from petra_graph.compiler.lower import partition
from petra_graph.compiler.plan import Plan, read_plan
from petra_graph.compiler.spec_checks import check_depths
from petra_graph.errors import SpecError, shown
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.place_network import check_limits, check_stages
from petra_graph.planning.spec_devices import machine_of, planned_devices
from petra_graph.program.stage_program import Placement
from petra_graph.record.run_directory import PLAN
from petra_graph.units import bounded

_WIDTH = 60


@frozen
class SavedPlan:
    """A plan, with where it is from."""

    plan: Plan
    source: str
    """For messages."""

    @classmethod
    def read(cls, source: str) -> SavedPlan:
        """Read a plan from a JSON file, or from a run's directory; SpecError: it cannot be read, or as `read_plan`."""
        path, hint = Path(source), ""
        if path.is_dir():
            path = path / PLAN
            hint = "a run has a plan if costs decided its placement, or if it was given one: `petra-graph plan SPEC --json --output FILE`"
        try:
            return cls(read_plan(path.read_bytes(), str(path)), str(path))
        except OSError as error:
            raise SpecError(f"cannot read the plan {path}: {error.strerror or error}", hint) from None

    def placement(self, network: MeasuredNetwork, present: Sequence[str], processes: int) -> Placement:
        """Return the plan's stages and depths on the devices of these names, which are present; of several processes of a pipeline each one's.

        Raises:
            SpecError: the plan is of another network, of other settings or of other devices; the first difference.
            NoFeasiblePlan: the plan's stages do not keep the memory limits of these devices.
        """
        plan, spec, checked = self.plan, network.spec, network.checked
        named = [device.name for device in plan.devices]
        if processes > 1:  # A process is a device, by the plan's names.
            assumed = planned_devices(spec.partition, tuple(named))
            devices = tuple(evolve(one, machine=machine_of(rank, one.type)) for rank, one in enumerate(assumed))
        else:
            found = planned_devices(spec.partition, tuple(dict.fromkeys(present)))
            devices = tuple(device for device in found if device.name in named)

        cut, stages = [[*stage.nodes] for stage in plan.stages], checked.stages
        self._compare("method.name", plan.method, checked.method.name)
        self._compare("method.accumulation", plan.accumulation, spec.method.accumulation)
        self._compare("data.batch", plan.micro_batch, spec.data.batch)
        self._compare("partition.replicas", plan.replicas, spec.partition.replicas)
        if stages is not None:
            self._compare("partition.stages", cut, [[*stage.nodes] for stage in stages.stages])
        elif isinstance(spec.partition.stages, int):
            self._compare("partition.stages", len(cut), spec.partition.stages)
        if checked.schedule != "auto":
            self._compare("method.schedule", plan.schedule, checked.schedule)
        self._compare("nodes", sorted(node.name for node in plan.nodes), sorted(network.graph.nodes))
        types = {one.name: one.type.name for one in devices}
        self._compare("devices", {one.name: one.type for one in plan.devices}, types)
        if processes > 1:
            self._compare("processes", len(plan.devices), processes)
        try:
            stages = partition(network.graph, cut, [""])
            check_depths(plan.schedule, network.graph, stages)
            hosts = [named.index(stage.device) for stage in plan.stages]
        except (SpecError, ValueError) as error:
            raise SpecError(f"{self.source} is damaged: {error}", "restore it, or make it again") from error
        kept = {node.name: node.keeps for node in plan.nodes if node.keeps is not None}
        placement = Placement(
            stages=tuple(
                evolve(stage, device=named[host], rank=host if processes > 1 else 0)
                for stage, host in zip(stages.stages, hosts, strict=True)
            ),
            devices=devices,
            schedule=plan.schedule,
            kept=kept if spec.method.keep == "auto" else None,
            notes=(f"stages, devices and depths are those of {self.source}",),
        )
        own = {node.name: node for node in network.described(network.lowering.placed(placement))}
        for node in plan.nodes:
            for key in ("kind", "block", "parameters", "inputs", "outputs", "keeps"):
                here = getattr(own[node.name], key)
                self._compare(f"node {shown(node.name)}: {key}", getattr(node, key), here)
        check_stages(network, placement)
        check_limits(network, placement)
        return placement

    def _compare(self, key: str, planned: Any, here: Any) -> None:
        if planned != here:
            came, wanted = (bounded(shown(one), _WIDTH) for one in (planned, here))
            hint = "`petra-graph plan SPEC --json --output FILE`, with the --set of the run, makes a new one"
            raise SpecError(f"{self.source} is a plan of {key} = {came}, not {wanted}", hint)
