"""`method.max_staleness`: the least accumulation under which no stage's gradients are later than that many updates.

A stage of depth d sees parameters change (d - 1) / k times between the forward and the backward of a micro-batch, on average over a full
pipeline. So a bound b asks for k = ceil((d - 1) / b), d the largest depth. The depths follow from the stages; where these are cut by
cost, or the schedule is "auto", they may follow from k in turn, so k grows until its own placement keeps the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, inf, log10

from attrs import evolve

from petra_graph.errors import Problem, SpecError
from petra_graph.executor.learning_rate import scaled_rate
from petra_graph.kinds.stage_facts import steady_staleness
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.place.place_network import place_as_planned
from petra_graph.program.device_types import Device
from petra_graph.spec.keys import MOST_WINDOW
from petra_graph.units import noun, plural


def bound_staleness(network: MeasuredNetwork, devices: tuple[Device, ...]) -> MeasuredNetwork:
    """Return a network whose accumulation keeps its bound; the same network if it has no bound.

    Args:
        network: its `spec.method.accumulation` is replaced.
        devices: those that the specification names.

    Raises:
        SpecError: no window within an epoch is long enough, or the stages cannot be placed.
        NoFeasiblePlan: no placement keeps the devices' memory limits.
    """
    bound = network.spec.method.max_staleness
    if bound is None:
        return network
    k = 1
    while True:
        bounded = network.variant(evolve(network.spec, method=evolve(network.spec.method, accumulation=k)))
        programs = bounded.programs(place_as_planned(bounded, devices))
        delay = int(max(steady_staleness(program.depth, 1, program.flush) for program in programs))
        least = _least_accumulation(bounded, delay, bound)
        if least <= k:
            return bounded
        k = least


def consequences(network: MeasuredNetwork) -> Iterator[str]:
    """Say what a bound has chosen, and the batch, the updates and the learning rate that follow."""
    spec, bound = network.spec, network.spec.method.max_staleness
    if bound is None:
        return
    k, epoch = spec.method.accumulation, network.micro_batches
    window = k if epoch is None else min(k, epoch)
    said = [f"an update averages {plural(spec.data.batch * window * spec.partition.replicas, 'sample')}"]
    if epoch is not None:
        said.append(f"an epoch has {plural(ceil(epoch / k), 'update')}")
    rate = scaled_rate(spec, network.checked.optimizer.options.lr)
    yield f"max_staleness = {bound:g} sets accumulation = {k}: {', '.join(said)}, and the learning rate is {rate:g}"


def _least_accumulation(network: MeasuredNetwork, delay: int, bound: float) -> int:
    """Return the least accumulation under which a delay in micro-batches is within a bound in updates.

    A trial on a part of the data has that of the whole: its own windows may be shorter.
    """
    epoch, longest = network.micro_batches_of_data, int(MOST_WINDOW.limit)
    most = longest if epoch is None else min(epoch, longest)
    least = delay / bound if bound else inf
    if not delay:
        return 1
    if least <= most:
        return ceil(least)
    asked = f"accumulation {ceil(least):,} would keep" if least <= longest else "no accumulation keeps"
    raise SpecError(
        Problem(
            message=f"{asked} max_staleness = {bound:g}: the first backward comes {_micro_batches(delay)} late, and "
            f"a window has at most {_micro_batches(most)}",
            hint=f"set it to {_round_up(delay / most)} or more, partition.stages lower, "
            'or method.schedule = "sequential" or method.name = "gpipe", which have no delay',
            path=("method", "max_staleness"),
        )
    )


def _micro_batches(many: int) -> str:
    return f"{many:,} {noun(many, 'micro-batch', 'es')}"


def _round_up(value: float) -> str:
    """Return a number of three digits that is not below a value."""
    digit = 10.0 ** (floor(log10(value)) - 2)
    return f"{ceil(value / digit) * digit:.3g}"
