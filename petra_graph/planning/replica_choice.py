"""`partition.replicas = "auto"`: how many pipelines share the devices and the samples of a micro-batch.

R pipelines have an R-th of the devices and of `data.batch` each, so an update averages the same samples whatever R is. Every R that divides
both is placed and timed; the fastest that keeps the memory limits is taken, the fewest replicas where several are as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from attrs import evolve

from petra_graph.compiler.spec_checks import device_count, replica_problems
from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.planning.machine.spec_devices import planned_devices
from petra_graph.planning.network.measure_network import MeasuredNetwork, measure
from petra_graph.planning.place.place_network import place
from petra_graph.planning.place.staleness_bound import bounded
from petra_graph.planning.predict.predict_plan import predict
from petra_graph.units import listed, plural, rate


def with_replicas(network: MeasuredNetwork) -> MeasuredNetwork:
    """Return a network whose number of replicas is decided: the same one, where the specification states it.

    Raises:
        SpecError: no number of replicas can be run; of one replica.
        NoFeasiblePlan: one replica does not keep the memory limits, and no other number does.
    """
    if network.spec.partition.replicas != "auto":
        return network
    found: dict[int, tuple[float, MeasuredNetwork]] = {}
    refused: dict[int, SpecError | NoFeasiblePlan] = {}
    for variant in _variants(network):
        replicas = variant.spec.partition.pipelines
        try:
            found[replicas] = _samples_per_second(variant), variant
        except (SpecError, NoFeasiblePlan) as error:
            refused[replicas] = error
    if not found:
        raise refused[1]
    best = max(found, key=lambda replicas: (found[replicas][0], -replicas))
    others = [f"{replicas} would do {rate(speed)}" for replicas, (speed, _) in found.items() if replicas != best]
    others += [
        f"{replicas} {'would not fit' if isinstance(error, NoFeasiblePlan) else 'would be refused'}"
        for replicas, error in refused.items()
    ]
    speed, chosen = found[best]
    spec = chosen.spec
    said = (
        f'replicas = "auto" is {best}, with {plural(device_count(spec.partition), "device")} and {plural(spec.data.batch, "sample")} '
        f"of a micro-batch each: {rate(speed)}{'; ' if others else ''}{listed(others)}"
    )
    return evolve(chosen, decided=(*chosen.decided, said))


def measured(checked: CheckedSpec) -> MeasuredNetwork:
    """Measure a network, and decide its number of replicas; errors as of `measure` and `with_replicas`."""
    return with_replicas(measure(checked))


def _variants(network: MeasuredNetwork) -> Iterator[MeasuredNetwork]:
    """Yield the network with each number of replicas that divides its devices and its micro-batch."""
    spec = network.spec
    devices, batch = spec.partition.devices, spec.data.batch
    assert isinstance(devices, int), "the check step refuses lists"
    common = gcd(devices, batch)
    for replicas in (number for number in range(1, common + 1) if common % number == 0):
        partition = evolve(spec.partition, replicas=replicas, devices=devices // replicas)
        yield network.variant(evolve(spec, partition=partition, data=evolve(spec.data, batch=batch // replicas)))


def _samples_per_second(variant: MeasuredNetwork) -> float:
    spec = variant.spec
    if problems := list(replica_problems(spec, spec.partition.pipelines)):
        raise SpecError(problems)
    devices = planned_devices(spec.partition)
    network = bounded(variant, devices)
    timing = predict(network, place(network, devices)).prediction.timing
    return timing.samples_per_second(spec.data.batch, spec.partition.pipelines)
