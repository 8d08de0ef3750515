"""What is said beside a plan's or a run's numbers: whether the optimizer suits late gradients, what the numbers rest on, and warnings with the key that helps.

A run's warnings need no prediction, since most runs begin without a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from math import ceil, inf

from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.errors import Path, Problem, shown
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.contract import asks_for_stage
from petra_graph.plugins.optimizer import EARLIER, LARGEST_STALENESS, PREDICTED, needs_delays
from petra_graph.program.device_types import MACHINE_DEVICES, Link
from petra_graph.program.simulation import Pipeline
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import PartitionSpec, Spec
from petra_graph.units import decimal_bytes, noun, seconds

_NAME: Path = ("optimizer", "name")
_OTHERWISE = "choose another optimizer, or other options of it"
_CURRENT = ("petra", "dsp")
"""Methods whose backwards use the current parameters, if no other key says otherwise."""
_DOES = {
    PREDICTED: "predicts the parameters that a backward will find",
    EARLIER: "estimates the parameters that a forward had",
}
"""What an optimizer does, by the method that the executor asks."""


def delay_problems(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[Problem]:
    """Yield the problems of an optimizer with other parameters for backwards that use stored ones or kept graphs, or of too much delay for its steps."""
    checked, optimizer = network.checked, network.checked.tried_optimizer
    late = [program for program in programs if program.staleness]
    stored = [
        one.index
        for one in late
        if any(segment.keeps == "graph" or segment.backward == "stored" for segment in one.segments)
    ]
    current = "method.allow_stored = false"
    if checked.method.name not in _CURRENT:
        current = f"method.name = {' or '.join(map(shown, _CURRENT))}, whose backwards use the current parameters"
    for method, does in _DOES.items() if stored else ():
        if hasattr(optimizer, method):
            yield Problem(
                message=f"{checked.optimizer} {does}, and under method {shown(checked.method.name)} "
                f"the backward of stage {stored[0]} is bound to those of its forward",
                hint=f"{_OTHERWISE}, or {current}",
                path=_NAME,
            )

    most, latest = getattr(optimizer, LARGEST_STALENESS, inf), max(programs, key=lambda program: program.staleness)
    if latest.staleness > most:
        limit, found = (f"{delay:.3g} {noun(delay, 'update')}" for delay in (most, latest.staleness))
        yield Problem(
            message=f"{checked.optimizer} is for delays of at most {limit}, and stage {latest.index} has one of {found}",
            hint=f"set method.accumulation = {ceil((latest.depth - 1) / most)}, or method.schedule to one with less delay"
            f", or {_OTHERWISE}",
            path=_NAME,
        )


_MUCH = 2
"""Updates of delay above which a run is told what helps."""


def run_warnings(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Yield the warnings, most important first."""
    latest = max(programs, key=lambda program: program.staleness)
    for text in network.across_stages([program.nodes for program in programs]):
        yield f"{text}: partition.untie gives each a copy of its own, so this is another model than the tied one"
    optimizer = network.checked.optimizer
    corrects = asks_for_stage(optimizer.code) or needs_delays(network.checked.tried_optimizer)
    if latest.staleness > _MUCH and not corrects:
        other = 'method.schedule = "1f1b" halves the delay, ' if network.checked.schedule == "lockstep" else ""
        yield (
            f"gradients reach stage {latest.index} {latest.staleness:.3g} updates late, which can cost accuracy: "
            f"{other}method.accumulation = {ceil((latest.depth - 1) / _MUCH)} makes it {_MUCH} updates or less"
        )


# --- of a plan ---

CPU_RATIO = (0.6, 2.9)
"""The least and the largest, over seven pipelines, of throughput by the data sheet divided by measured throughput: medians of
`tools/bench/throughput.py`, on a quiet machine and on one that others loaded."""
GPU_RATIO = (0.7, 1.3)
"""The same on one H100, where convolutions and matrix products are in TF32: RevNet18, RevNet50 and the quickstart
(`tools/bench/results/device-2026-11-26.json`)."""
GPU_RATIO_WITHOUT_TF32 = 1.8
"""The largest where they are in float32."""
PROFILE_RATIO = (0.9, 1.2)
"""The same as `CPU_RATIO` of throughput by a profile, on the quiet machine; others loaded the machine up to 1.6."""


def throughput_range(inputs: PlannerInputs, spec: Spec, planned: float) -> tuple[float, float]:
    """Return the samples a second between which a run on these devices is to be expected, by what such plans were compared with."""
    ratios = [PROFILE_RATIO]
    if inputs.profile is None:
        of_gpu = (GPU_RATIO[0], GPU_RATIO_WITHOUT_TF32 if spec.precision.products == "ieee" else GPU_RATIO[1])
        ratios = [CPU_RATIO if device.type.kind == "cpu" else of_gpu for device in inputs.devices]
    return planned / max(high for _, high in ratios), planned / min(low for low, _ in ratios)


def source_of_times(inputs: PlannerInputs, partition: PartitionSpec) -> str:
    """Say where a plan's times are from."""
    if inputs.profile is not None:
        return f"measured in a profile of {inputs.profile.device}"
    types = list(dict.fromkeys(device.type.name for device in inputs.devices))
    stated = [name for name in partition.device if name in types]
    whose = f" (with the specification's figures for {' and '.join(stated)})" if stated else ""
    return f"estimates from the data sheet of {' and '.join(types)}{whose}"


def assumptions(inputs: PlannerInputs, spec: Spec, pipeline: Pipeline) -> Iterator[str]:
    """Yield where the numbers of a network's plans on the same devices are from; what all plans assume is on the compiler's page."""
    profile = "" if inputs.profile is not None else "; `petra-graph profile` times the real device"
    yield f"times are {source_of_times(inputs, spec.partition)}{profile}"

    def text(link: Link) -> str:
        return f"{seconds(link.latency_seconds)} a message and {decimal_bytes(link.bytes_per_second)}/s each way"

    device = {device.name: device for device in inputs.devices}
    if ends := {channel.link for channel in pipeline.channels.values() if channel.link is not None}:
        worst = reduce(Link.slower, {device[one].link_to(device[other]) for one, other in ends})
        yield f"between devices, at worst: {text(worst)}, during computation"
    if inputs.crosses_machines:
        network, size = (
            next(one.network or one.link for one in inputs.devices),
            MACHINE_DEVICES[inputs.devices[0].type.kind],
        )
        stated = "partition.link_latency and partition.link_bandwidth state others"
        yield f"machines of {size} devices, filled in order; between machines: {text(network)} ({stated})"
    yield from inputs.costs.assumptions


def warnings(inputs: PlannerInputs, network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Yield the warnings of a plan, most important first."""
    state = "set partition.device_type, or partition.profile, which `petra-graph profile` makes there"
    guesses = dict.fromkeys(device.type.guess for device in inputs.devices if device.type.guess)
    yield from (f"{guess}: {state}" for guess in guesses)
    if len({program.device for program in programs}) == 1 and any(program.delayed for program in programs):
        sequential = "sequential" in inputs.method.schedules
        remedy = 'method.schedule = "sequential"' if sequential else 'method.name = "reversible-backprop"'
        yield f"one device does one stage after another, so delay brings no speed, and costs accuracy: set {remedy}"
    yield from run_warnings(network, programs)
