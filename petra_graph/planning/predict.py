"""From a placement to a plan: its memory, its speed, and the assumptions behind the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

from attrs import frozen

from petra_graph.compiler.document import document
from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.planner_inputs import slower
from petra_graph.measure.shapes import NodeShapes
from petra_graph.planning.measure import MeasuredNetwork
from petra_graph.planning.warnings import warnings
from petra_graph.program.devices import EFFICIENCY
from petra_graph.program.placement import Placement
from petra_graph.program.plan_document import Document
from petra_graph.spec.model import Spec


@frozen(kw_only=True)
class Plan:
    """A specification with the prediction of its placement."""

    spec: Spec
    shapes: Mapping[str, NodeShapes]
    prediction: Prediction

    def document(self, *, with_timeline: bool, with_warnings: bool = True) -> Document:
        """Return the plan as JSON.

        Args:
            with_timeline: list the first operations one by one.
            with_warnings: name keys to change, for which other plans are tried.
        """
        return document(
            self.spec.name,
            self.prediction,
            self.shapes,
            assumptions=_assumptions(self.prediction, self.spec),
            warnings=warnings(self.prediction, self.spec) if with_warnings else (),
            with_timeline=with_timeline,
        )


def predict(network: MeasuredNetwork, placement: Placement, *, overlap: bool = False) -> Plan:
    """Predict a placement: a plan's, or a run's.

    Args:
        network: the network.
        placement: its stages on devices.
        overlap: devices run forwards and backwards on two streams.

    Raises:
        SpecError: the profile does not belong to the specification, or a block cannot be run.
    """
    inputs = network.planner_inputs(placement.devices, overlap=overlap)
    return Plan(spec=network.spec, shapes=network.shapes, prediction=Prediction(inputs=inputs, placement=placement))


def _assumptions(prediction: Prediction, spec: Spec) -> Iterator[str]:
    """Yield the sources of the numbers."""
    inputs = prediction.inputs
    profile = inputs.profile
    types = list(dict.fromkeys(device.type.name for device in inputs.devices))
    if profile is None:
        yield (
            f"times are estimates: the data sheet of {' and '.join(types)}, of which kernels are taken to reach "
            f"{EFFICIENCY:.0%}, in arithmetic or in memory traffic; `petra-graph profile` times the real device"
        )
    else:
        threads = f"{profile.threads} thread{'s' if profile.threads > 1 else ''}"
        yield f"times are of a profile: {profile.device}, {threads}, every operation's median"
        if len(types) > 1:
            yield f"the profile is taken for {types[0]}; the others' times are scaled by the arithmetic of their data sheets"
        if inputs.outside_seconds:
            yield (
                f"{1e3 * inputs.outside_seconds:.3g} ms of a micro-batch, for loading and handing on, are in the first "
                "stage's forward and in no node's"
            )
    links = {link for pair, link in prediction.pipeline.links.items() if pair}
    if links:
        slowest = reduce(slower, links)
        which = "between devices" if len(links) == 1 else "between devices, at worst"
        yield (
            f"{which}: {slowest.latency_seconds:.3g} s a message and {slowest.bytes_per_second:.3g} bytes/s each way, "
            "beside computation"
        )
    if inputs.replicas > 1:
        yield (
            f"devices and bytes are those of one of {inputs.replicas} pipelines, speed is of all; every update waits for a "
            "ring all-reduce of its stage's gradients, none of it hidden"
        )
        if spec.partition.sync_batch_norm:
            yield "the messages of batch normalisations between replicas are in neither bytes nor times"
    if prediction.placement.guarantee:
        apart = ", where forwards and backwards do not overlap" if inputs.overlap else ""
        yield f"the cut: {prediction.placement.guarantee}{apart}"
    if inputs.transport.buffer == 0:
        yield "buffers wait in host memory, which is not counted; copies there and back are taken to hide behind computation"
    yield "memory is of tensors, every stage's at its own largest moment; a device's is the sum of its stages'"
    yield from inputs.costs.assumptions
