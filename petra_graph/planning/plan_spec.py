"""A plan from a specification alone: check, measure, place, predict memory and speed; and what is said beside the numbers of a plan or a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import ceil, inf

from attrs import frozen

from petra_graph.compiler.memory import summed
from petra_graph.compiler.plan import Figures, Plan, PlannedDevice, PlannedRun, PlannedStage, Totals
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.compiler.timing import Event, Tick, device_shares, simulate, tick, timing
from petra_graph.errors import Problem, shown
from petra_graph.graph.node_graph import INPUT
from petra_graph.measure.nodes import Memo
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.check_spec import ProblemCollector, check_spec
from petra_graph.planning.network import MeasuredNetwork, head_problems, measure
from petra_graph.planning.place_network import place_network, planned_devices
from petra_graph.plugins.contract import asks_for_stage
from petra_graph.plugins.optimizer import EARLIER, LARGEST_STALENESS, PREDICTED, needs_delays
from petra_graph.program.node_costs import CostTable, NodeCost
from petra_graph.program.simulation import Pipeline
from petra_graph.program.stage_program import Placement, StageProgram
from petra_graph.spec.load_spec import Given
from petra_graph.spec.model import Spec
from petra_graph.units import noun

TICKS_SHOWN = 6
"""Ticks of the steady state in a timeline."""
_NOT_EXACT = "a long simulation found no period, so the tick is a mean; what follows from it (throughput, speed-up, bubble) is no more exact"
_MUCH = 2
"""Updates of delay above which a run is told what helps."""
CPU_RATIO = (0.6, 2.9)
"""The least and the largest, over seven pipelines, of throughput by the data sheet divided by measured throughput: medians of
`tools/bench/throughput.py`, on a quiet machine and on one that others loaded."""
GPU_RATIO = (0.7, 1.3)
"""The same on one H100, where convolutions and matrix products are in TF32: RevNet18, RevNet50 and the quickstart
(`tools/bench/results/device-2026-11-26.json`). In float32 the largest was 1.8."""
PROFILE_RATIO = (0.9, 1.2)
"""The same as `CPU_RATIO` of throughput by a profile, on the quiet machine; others loaded the machine up to 1.6."""


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
    def certainty(self) -> str:
        """Where its times are from, and how far such plans were from runs."""
        devices, profile = self.inputs.devices, self.inputs.profile
        source = f"estimates from the data sheet of {' and '.join(dict.fromkeys(one.type.name for one in devices))}"
        ratios = [CPU_RATIO if one.type.kind == "cpu" else GPU_RATIO for one in devices]
        if profile is not None:
            source, ratios = f"measured in a profile of {profile.device}", [PROFILE_RATIO]
        least, most = zip(*ratios, strict=True)
        return f"{source}; such plans gave {min(least)} to {max(most)} times the speed that runs had"


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
        return self._known.get(variant or self.spec, lambda: self._estimate(variant or self.spec))

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


def described_plan(found: Estimate, *, with_timeline: bool = False) -> Plan:
    """Return everything that is known of an estimate; with the timeline, also the first operations one by one, of which there are many."""
    network, inputs, programs, pipeline = found.network, found.inputs, found.programs, found.pipeline
    spec, placement, costs, batch = network.spec, found.placement, inputs.costs, inputs.costs.micro_batch
    speed = timing(pipeline, found.tick, batch * inputs.replicas)

    apart, stages = inputs.memory.apart(programs), list[PlannedStage]()
    for program, seconds, held in zip(programs, pipeline.seconds, apart, strict=True):
        kinds = {segment.kind for segment in program.segments}
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
                seconds=seconds,
                bytes=held,
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
        certainty=found.certainty,
        notes=(*placement.notes, *[_NOT_EXACT] * (not speed.exact)),
        warnings=tuple(_warnings(found)),
    )


def paper_accounting(programs: Sequence[StageProgram], costs: CostTable) -> Mapping[str, int]:
    """Count the bytes of all stages, by part, as table 3 of the PETRA paper does, to be shown beside the true ones.

    For a node with P parameters, R running statistics and an input of S values, in a stage of staleness tau, all in float32:

        model             P + R + S
        input buffer      S tau             if the node keeps its input
        parameter buffer  P ceil(tau / k)   if the backward uses the forward's parameters

    S counts one stream of a reversible node and of the head, and all of a buffered node. The first node's input buffer is
    counted in the rows where reversible nodes keep their inputs, and left out of the others.
    """

    def inputs(node: NodeCost) -> int:
        return sum(node.input_values) if node.kind == "buffered" else node.input_values[0]

    model = input_buffer = parameter_buffer = 0
    segments = [(program, segment) for program in programs for segment in program.segments]
    samples_count = {segment.keeps for _, segment in segments if segment.kind == "reversible"} != {"nothing"}
    for program, segment in segments:
        staleness, nodes = program.depth - 1, [costs.nodes[name] for name in segment.nodes]
        model += sum(node.parameters + node.statistics + inputs(node) for node in nodes)
        if segment.kind == "head":
            continue
        if segment.backward == "stored":
            parameter_buffer += sum(node.parameters for node in nodes) * -(-staleness // program.accumulation)
        reads_samples = any(entry.edge.producer == INPUT for entry in segment.inputs)
        if segment.keeps != "nothing" and (samples_count or not reads_samples):
            input_buffer += inputs(nodes[0]) * staleness
    parts = {"model": model, "input_buffer": input_buffer, "parameter_buffer": parameter_buffer}
    parts["total"] = sum(parts.values())
    return {part: 4 * values for part, values in parts.items()}


# --- beside the numbers ---


def delay_problems(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[Problem]:
    """Yield the problems of an optimizer with other parameters for backwards that use stored ones or kept graphs, or of too much delay for its steps."""
    checked, optimizer, otherwise = network.checked, network.checked.tried_optimizer, "choose another optimizer"
    stored = [
        one.index
        for one in programs
        if one.staleness and any(segment.keeps == "graph" or segment.backward == "stored" for segment in one.segments)
    ]
    if stored and (hasattr(optimizer, PREDICTED) or hasattr(optimizer, EARLIER)):
        # The methods whose backwards use the current parameters, if no other key says otherwise.
        is_current = checked.method.name in ("petra", "dsp")
        current = "method.allow_stored = false" if is_current else 'method.name = "petra" or "dsp"'
        message = (
            f"{checked.optimizer} computes for other parameters than a stage's own, and under method {shown(checked.method.name)} "
            f"the backward of stage {stored[0]} is bound to those of its forward"
        )
        yield Problem(message=message, hint=f"{otherwise}, or {current}", path=("optimizer", "name"))
    most, latest = getattr(optimizer, LARGEST_STALENESS, inf), max(programs, key=lambda program: program.staleness)
    if latest.staleness > most:
        limit, found = (f"{delay:.3g} {noun(delay, 'update')}" for delay in (most, latest.staleness))
        message = f"{checked.optimizer} is for delays of at most {limit}, and stage {latest.index} has one of {found}"
        hint = f"set method.accumulation = {ceil((latest.depth - 1) / most)}, or a method.schedule with less delay, or {otherwise}"
        yield Problem(message=message, hint=hint, path=("optimizer", "name"))


def run_warnings(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Yield the warnings, most important first."""
    latest = max(programs, key=lambda program: program.staleness)
    optimizer = network.checked.optimizer
    corrects = asks_for_stage(optimizer.code) or needs_delays(network.checked.tried_optimizer)
    if latest.staleness > _MUCH and not corrects:
        other = 'method.schedule = "1f1b" halves the delay, ' if network.checked.schedule == "lockstep" else ""
        yield (
            f"gradients reach stage {latest.index} {latest.staleness:.3g} updates late, which can cost accuracy: "
            f"{other}method.accumulation = {ceil((latest.depth - 1) / _MUCH)} makes it {_MUCH} updates or less"
        )


def _warnings(found: Estimate) -> Iterator[str]:
    """Yield the warnings of a plan, most important first."""
    inputs, programs = found.inputs, found.programs
    state = "set partition.device_type, or partition.profile, which `petra-graph profile` makes there"
    guesses = dict.fromkeys(device.type.guess for device in inputs.devices if device.type.guess)
    yield from (f"{guess}: {state}" for guess in guesses)
    if len({program.device for program in programs}) == 1 and any(program.delayed for program in programs):
        sequential = "sequential" in inputs.method.schedules
        remedy = 'method.schedule = "sequential"' if sequential else 'method.name = "reversible-backprop"'
        yield f"one device does one stage after another, so delay brings no speed, and costs accuracy: set {remedy}"
    yield from run_warnings(found.network, programs)
