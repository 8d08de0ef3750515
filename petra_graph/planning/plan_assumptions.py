"""The assumptions of a plan: the sources of its numbers, and what they leave out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain
from math import ceil

from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.program.device_types import EFFICIENCY, Link
from petra_graph.spec.model import PartitionSpec, Spec
from petra_graph.units import DECIMAL, plural, seconds

CPU_RATIO = (0.6, 2.9)
"""The least and the largest, over seven pipelines, of throughput by the data sheet divided by measured throughput: medians of
`tools/bench/throughput.py`, on a quiet machine and on one that others loaded."""


def assumptions(prediction: Prediction, spec: Spec) -> Iterator[str]:
    yield from _of_times(prediction.inputs, spec.partition)
    yield from _of_links(prediction, spec.partition)
    yield from _of_replicas(prediction, spec.partition)
    if not prediction.timing.exact:
        yield INEXACT
    if prediction.placement.guarantee:
        apart = ", where forwards and backwards do not overlap" if prediction.inputs.overlap else ""
        yield f"the cut: {prediction.placement.guarantee}{apart}"
    yield from _of_memory(prediction, spec)


def assumptions_of_all(plans: Iterable[tuple[Prediction, Spec]]) -> Sequence[str]:
    """Return the assumptions of several plans of one network, each sentence once; cuts are each plan's own."""
    said: list[list[str]] = []
    for prediction, spec in plans:
        inputs = prediction.inputs
        said += [
            device_guesses(inputs),
            [*_of_times(inputs, spec.partition)],
            [*_of_links(prediction, spec.partition, counted=False)],
            [*_of_replicas(prediction, spec.partition, counted=False)],
            [*_of_memory(prediction, spec)],
        ]
    return list(dict.fromkeys(chain.from_iterable(chain.from_iterable(said[part::_PARTS] for part in range(_PARTS)))))


_PARTS = 5
INEXACT = (
    "the tick is not exact: no period was found in a long simulation, and it is the mean over its middle; what follows from "
    "it (throughput, speed-up, bubble) is as exact"
)


def device_guesses(inputs: PlannerInputs) -> list[str]:
    """Return the sentences on devices whose figures are on no data sheet, each once."""
    return list(dict.fromkeys(device.type.guess for device in inputs.devices if device.type.guess))


def _of_times(inputs: PlannerInputs, partition: PartitionSpec) -> Iterator[str]:
    profile = inputs.profile
    types = list(dict.fromkeys(device.type.name for device in inputs.devices))
    if profile is None:
        launches = {device.type.kind: device.type.launch_seconds for device in inputs.devices}
        stated = [name for name in partition.device if name in types]
        whose = f", with the specification's figures of {' and '.join(stated)}" if stated else ""
        each = " and ".join(f"{seconds(launch)} on a {_KINDS[kind]}" for kind, launch in launches.items())
        yield (
            f"times are estimates from the data sheet of {' and '.join(types)}{whose}, of which kernels are taken to reach "
            f"{EFFICIENCY:.0%}, in arithmetic or in memory traffic, and {each} to launch an operation; "
            "`petra-graph profile` times the real device"
        )
        yield from (_FOUND[kind] for kind in launches)
    else:
        threads = plural(profile.threads, "thread")
        yield f"times are measured in a profile of {profile.device}, {threads}, every operation's median"
        if len(types) > 1:
            yield f"the profile is taken for {types[0]}; the others' times are scaled by the arithmetic of their data sheets"
        if inputs.outside_seconds:
            yield (
                f"{seconds(inputs.outside_seconds)} of a micro-batch, for loading and handing on, are in the first "
                "stage's forward and in no node's"
            )


_KINDS = {"cpu": "CPU", "cuda": "GPU's host"}
_FOUND = {
    "cpu": (
        f"how far such estimates hold: on one CPU, quiet or loaded, throughput by the data sheet was {CPU_RATIO[0]} to {CPU_RATIO[1]} times the "
        "measured (tools/README.md)"
    ),
    "cuda": "how far such estimates hold: they were never compared with a GPU",
}


def _of_links(prediction: Prediction, partition: PartitionSpec, *, counted: bool = True) -> Iterator[str]:
    links = {link for pair, link in prediction.pipeline.links.items() if pair}
    if links:
        which = "between devices" if len(links) == 1 and counted else "between devices, at worst"
        yield f"{which}: {_text(reduce(Link.slower, links))} each way, during computation"
    inputs = prediction.inputs
    if inputs.crosses_machines:
        machines = (
            f"{ceil(len(inputs.devices) * inputs.replicas / inputs.machine_devices)} machines"
            if counted
            else "machines"
        )
        network = next(device.network or device.link for device in inputs.devices)
        stated = {partition.link_latency is not None, partition.link_bandwidth is not None} == {True}
        source = "as stated" if stated else "assumed: partition.link_latency and partition.link_bandwidth state others"
        yield (
            f"{machines} of {inputs.machine_devices} devices, filled in order; between machines: {_text(network)} each way "
            f"({source})"
        )


def _text(link: Link) -> str:
    return f"{seconds(link.latency_seconds)} a message and {DECIMAL.text(link.bytes_per_second)}/s"


def _of_replicas(prediction: Prediction, partition: PartitionSpec, *, counted: bool = True) -> Iterator[str]:
    inputs = prediction.inputs
    if inputs.replicas > 1:
        count = inputs.replicas if counted else "several"
        yield (
            f"devices and bytes are those of one of {count} pipelines, speed is of all; every update waits for a "
            "ring all-reduce of its stage's gradients, none of it hidden"
        )
        if partition.sync_batch_norm:
            yield "the messages of batch normalisations between replicas are in neither bytes nor times"


def _of_memory(prediction: Prediction, spec: Spec) -> Iterator[str]:
    inputs = prediction.inputs
    if inputs.transport.buffer == 0:
        yield "buffers wait in host memory, which is not counted; copies there and back are taken to hide behind computation"
    alone = "memory is of tensors, every stage's at its own largest moment"
    if len(prediction.device_memory) == len(prediction.programs):
        yield alone
    else:
        turns = {
            "arrival": "stages take turns, the one nearest to the head first",
            "static": "stages follow the plan's fixed order",
        }
        yield (
            f"{alone}, as if on a device of its own; a device with several stages has less than their sum, since one of them "
            f"works at a time and what one hands to another is the same tensor: {turns[inputs.policy]}"
        )
    evaluated = spec.data.test_batch
    if evaluated > spec.data.batch:
        yield (
            f"memory is of the training; an evaluation in batches of {evaluated} samples, where the training has "
            f"{spec.data.batch}, may hold more"
        )
    yield from inputs.costs.assumptions
