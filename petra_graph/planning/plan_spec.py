"""A plan from a specification alone: check, measure, place, predict memory and speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from attrs import frozen

from petra_graph.compiler.memory import summed
from petra_graph.compiler.plan import (
    BothWays,
    Certainty,
    Figures,
    Plan,
    PlannedDevice,
    PlannedRun,
    PlannedStage,
    Totals,
)
from petra_graph.compiler.planner_inputs import PlannerInputs, stage_flops
from petra_graph.compiler.timing import Event, Tick, device_shares, simulate, tick, timing
from petra_graph.graph.node_graph import INPUT
from petra_graph.measure.node_shapes import Memo
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.advice import assumptions, delay_problems, source_of_times, throughput_range, warnings
from petra_graph.planning.check_spec import ProblemCollector, check_spec
from petra_graph.planning.network import MeasuredNetwork, head_problems, measure
from petra_graph.planning.place_network import place_network
from petra_graph.planning.spec_devices import planned_devices
from petra_graph.program.node_costs import CostTable, NodeCost
from petra_graph.program.simulation import Pipeline
from petra_graph.program.stage_program import Placement, StageProgram
from petra_graph.spec.load_spec import Given
from petra_graph.spec.model import Spec

TICKS_SHOWN = 6
"""Ticks of the steady state in a timeline."""
_NOT_EXACT = (
    "the tick is not exact: a long simulation found no period, so the tick is the mean over the middle of it; what follows from "
    "the tick (throughput, speed-up, bubble) is no more exact"
)
_FLOAT32 = 4
"""Bytes of a value."""


@frozen(kw_only=True, eq=False)
class Estimate:
    """A placement of a network, with what both models say of it."""

    network: MeasuredNetwork
    placement: Placement
    inputs: PlannerInputs
    programs: tuple[StageProgram, ...]
    pipeline: Pipeline
    tick: Tick
    peaks: Mapping[str, int]
    """The most bytes that each device with a stage holds."""

    @classmethod
    def of(cls, network: MeasuredNetwork, placement: Placement) -> Estimate:
        """Estimate a placement: a plan's, or a run's; errors as of `MeasuredNetwork.planner_inputs`."""
        inputs = network.planner_inputs(placement.devices)
        programs = inputs.placed(placement)
        pipeline = inputs.pipeline(programs)
        return cls(
            network=network,
            placement=placement,
            inputs=inputs,
            programs=programs,
            pipeline=pipeline,
            tick=tick(pipeline),
            peaks=inputs.memory.peaks(programs),
        )

    @property
    def samples_per_second(self) -> float:
        """Of all replicas."""
        samples = self.inputs.costs.micro_batch * self.inputs.replicas
        return samples / self.tick.seconds if self.tick.seconds else 0.0

    @property
    def figures(self) -> Figures:
        """What it is compared with others by."""
        staleness = max(program.staleness for program in self.programs)
        return Figures(self.samples_per_second, staleness, max(self.peaks.values()))

    @property
    def assumptions(self) -> Iterator[str]:
        return assumptions(self.inputs, self.network.spec, self.pipeline)


class Planner:
    """Plans of one specification and its variants: the network is checked and measured once, and each variant placed once."""

    def __init__(self, given: Given, overrides: Iterable[str] = ()) -> None:
        """Check the specification; arguments and errors as of `check_spec`."""
        self.checked = check_spec(given, overrides)
        self._known = Memo[Estimate]()

    @property
    def spec(self) -> Spec:
        return self.checked.spec

    @cached_property
    def network(self) -> MeasuredNetwork:
        return measure(self.checked)

    def estimate(self, variant: Spec | None = None) -> Estimate:
        """Place the specification, or a variant with the same network, and estimate its memory and its speed, once.

        SpecError, PluginError: something is wrong, located; NoFeasiblePlan: no placement keeps the devices' memory limits.
        """
        spec = variant or self.spec
        return self._known.get(spec, lambda: self._estimate(spec))

    def plan(self, variant: Spec | None = None, *, with_timeline: bool = False) -> Plan:
        """Plan the specification, or a variant; errors as of `estimate`."""
        return described_plan(self._estimate(variant or self.spec), with_timeline=with_timeline)

    @uncompiled()
    def _estimate(self, spec: Spec) -> Estimate:
        problems = ProblemCollector(loaded=self.checked.loaded)
        devices = problems.attempt(planned_devices, spec.partition)
        network = problems.attempt(lambda: self.network if spec is self.spec else self.network.variant(spec))
        if network is not None:
            problems.add(head_problems(network, self.checked.facts))
        problems.raise_any()
        assert devices is not None
        assert network is not None
        found = problems.require(lambda: Estimate.of(network, place_network(network, devices)))
        problems.add(delay_problems(network, found.programs))
        problems.raise_any()
        return found


def plan(given: Given, overrides: Iterable[str] = ()) -> Plan:
    """Plan a specification; errors as `Planner`."""
    return Planner(given, overrides).plan()


@uncompiled()
def predict(network: MeasuredNetwork, placement: Placement) -> Plan:
    """Predict a run's placement; errors as of `MeasuredNetwork.planner_inputs`."""
    return described_plan(Estimate.of(network, placement))


def described_plan(found: Estimate, *, with_timeline: bool = False) -> Plan:
    """Return everything that is known of an estimate; with the timeline, also the first operations one by one, of which there are many."""
    network, inputs, programs, pipeline = found.network, found.inputs, found.programs, found.pipeline
    spec, placement, costs, batch = network.spec, found.placement, inputs.costs, inputs.costs.micro_batch
    speed = timing(pipeline, found.tick, batch * inputs.replicas)

    apart, stages = inputs.memory.apart(programs), list[PlannedStage]()
    for program, seconds, held in zip(programs, pipeline.seconds, apart, strict=True):
        kinds, sent = {segment.kind for segment in program.segments}, {"forward": 0, "backward": 0}
        for channel in program.channels:
            if channel.sender == program.index:
                sent[channel.key.direction] += channel.training.payload_bytes
        stages.append(
            PlannedStage(
                index=program.index,
                nodes=program.nodes,
                kind=next(kind for kind in ("head", "buffered", "reversible") if kind in kinds),
                device=program.device,
                depth=program.depth,
                staleness=program.staleness,
                # A parameter that several nodes of a stage share counts once.
                parameters=sum(costs.nodes[name].parameters for name in program.nodes),
                flops=stage_flops(program, costs),
                seconds=seconds,
                bytes=held,
                channel_bytes=BothWays(**sent),
            )
        )
    on_devices, shares = inputs.memory.on_devices(programs, found.peaks), device_shares(pipeline, speed.tick_seconds)
    devices = tuple(
        PlannedDevice(
            name=device.name,
            type=device.type.name,
            stages=tuple(program.index for program in programs if program.device == device.name),
            memory_bytes=device.memory_bytes,
            capacity_bytes=device.type.memory_bytes,
            bytes=on_devices[device.name],
            busy_seconds_per_tick=shares[device.name][0] * speed.tick_seconds,
            utilisation=shares[device.name][0],
            exchange_seconds_per_tick=shares[device.name][1] * speed.tick_seconds,
        )
        for device in inputs.devices
        if device.name in pipeline.hosted
    )
    slowest, fastest = throughput_range(inputs, spec, speed.samples_per_second)

    many, shown = network.micro_batches, tuple[Event, ...]()
    # The pipeline drains at the end of each epoch.
    epoch_seconds = None if many is None else many * speed.tick_seconds + max(0.0, speed.overhead_seconds)
    if with_timeline:
        windows = -(-(max(program.depth for program in programs) + TICKS_SHOWN) // inputs.accumulation)
        shown = simulate(pipeline, windows * inputs.accumulation)

    return Plan(
        name=spec.name,
        method=inputs.method.name,
        schedule=placement.schedule,
        accumulation=inputs.accumulation,
        replicas=inputs.replicas,
        micro_batch=batch,
        samples_per_update=batch * inputs.accumulation * inputs.replicas,
        stages=tuple(stages),
        totals=Totals(
            parameters=sum(stage.parameters for stage in stages),
            trained=network.count_parameters([stage.nodes for stage in stages])[1],
            bytes=summed(device.bytes for device in devices),
        ),
        paper_accounting=paper_accounting(programs, costs),
        timing=speed,
        run=PlannedRun(
            epochs=spec.run.epochs,
            micro_batches_per_epoch=many,
            epoch_seconds=epoch_seconds,
            seconds=None if epoch_seconds is None else spec.run.epochs * epoch_seconds,
        ),
        devices=devices,
        nodes=network.described(programs),
        timeline=shown,
        certainty=Certainty(
            samples_per_second_low=slowest,
            samples_per_second_high=fastest,
            times=source_of_times(inputs, spec.partition),
            profiled=inputs.profile is not None,
        ),
        notes=(*placement.notes, *[_NOT_EXACT] * (not speed.exact)),
        assumptions=tuple(found.assumptions),
        warnings=tuple(warnings(inputs, network, programs)),
    )


def paper_accounting(programs: Sequence[StageProgram], costs: CostTable) -> Mapping[str, int]:
    """Count the bytes of all stages, by part, as table 3 of the PETRA paper does, to be shown beside the true ones.

    For a node with P parameters, R running statistics and an input of S values, in a stage of staleness tau:

        model             P + R + S
        input buffer      S tau             if the node keeps its input
        parameter buffer  P ceil(tau / k)   if the backward uses the forward's parameters

    All in float32. S counts one stream of a reversible node and of the head, and all of a buffered node, so a reversible node's
    stored input is under-counted by half. The first node's input buffer is counted in the rows where reversible nodes keep
    their inputs, and left out of the others.
    """

    def inputs(node: NodeCost) -> int:
        return sum(node.input_values) if node.kind == "buffered" else node.input_values[0]

    model = input_buffer = parameter_buffer = 0
    segments = [segment for program in programs for segment in program.segments]
    samples_count = {segment.keeps for segment in segments if segment.kind == "reversible"} != {"nothing"}
    for program in programs:
        staleness = program.depth - 1
        for segment in program.segments:
            for node in (costs.nodes[name] for name in segment.nodes):
                model += node.parameters + node.statistics + inputs(node)
                if segment.backward == "stored" and segment.kind != "head":
                    parameter_buffer += node.parameters * -(-staleness // program.accumulation)
            reads_samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
            if segment.kind != "head" and segment.keeps != "nothing" and (samples_count or not reads_samples):
                input_buffer += inputs(costs.nodes[segment.nodes[0]]) * staleness
    parts = {"model": model, "input_buffer": input_buffer, "parameter_buffer": parameter_buffer}
    parts["total"] = sum(parts.values())
    return {part: _FLOAT32 * values for part, values in parts.items()}
