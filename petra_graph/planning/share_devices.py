"""Other ways to share the devices of a specification: replicas of shorter pipelines, down to the whole network on each device.

An update averages the same samples in all of them: with R times the replicas, each accumulates over an R-th of the micro-batches, or has fewer
samples in a micro-batch if there are not enough of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Literal

from attrs import evolve

from petra_graph.compiler.spec_checks import device_count
from petra_graph.errors import NoFeasiblePlan, SpecError, shown
from petra_graph.planning.predict_plan import Plan
from petra_graph.spec.model import MethodSpec, OptimizerSpec, RequestedScheduleName, Spec
from petra_graph.units import factor, memory

_ALONE: Sequence[tuple[str, Literal["auto"] | None]] = (
    ("backprop", None),
    ("reversible-backprop", None),
    ("backprop", "auto"),
)
"""Methods, and what their nodes keep, for replicas that have the whole network on one device: no gradient is late."""
_IN_PIPELINES: Sequence[tuple[str, RequestedScheduleName]] = (("1f1b-flush", "1f1b"), ("petra", "1f1b"))
"""Methods and schedules for replicas of shorter pipelines: the synchronous one, and the one that keeps least."""

_FASTER = 1.05
"""The ratio of throughputs from which other replicas are worth a word."""


def shared_devices(spec: Spec) -> Iterator[Spec]:
    """Yield the specification with other numbers of replicas, each with the methods that suit it; nothing if its devices differ."""
    partition = spec.partition
    if isinstance(partition.device_type, tuple) or isinstance(partition.memory, tuple):
        return
    devices = device_count(partition) * partition.replicas
    for replicas in range(2, devices + 1):
        if devices % replicas or (variant := _with_replicas(spec, replicas, devices // replicas)) is None:
            continue
        if replicas == devices:
            for name, keep in _ALONE:
                method = replace_method(variant.method, name, "sequential")
                yield evolve(variant, method=evolve(method, keep=keep))
        elif replicas != partition.replicas:
            for name, schedule in _IN_PIPELINES:
                yield evolve(variant, method=replace_method(variant.method, name, schedule))


def _with_replicas(spec: Spec, replicas: int, stages: int) -> Spec | None:
    """Return a specification with this number of replicas, each a pipeline of `stages` devices; None if no update can average the same samples."""
    windows = spec.method.accumulation * spec.partition.replicas
    fewer = gcd(windows, replicas)
    accumulation, (batch, left) = windows // fewer, divmod(spec.data.batch, replicas // fewer)
    if left:
        return None
    partition = evolve(spec.partition, replicas=replicas, devices=stages, stages=stages)
    method = evolve(spec.method, accumulation=accumulation)
    data = evolve(spec.data, batch=batch)
    return evolve(spec, partition=partition, method=method, data=data, optimizer=clip_by_stage(spec.optimizer))


def better_replicas(plan: Plan, plan_variant: Callable[[Spec], Plan]) -> Iterator[str]:
    """Say if replicas of the whole network are faster than a plan, and no later: the first of the methods that fits.

    Args:
        plan_variant: plans another specification of the same network.
    """
    spec = plan.spec
    devices = device_count(spec.partition) * spec.partition.replicas
    for variant in shared_devices(spec):
        if variant.partition.replicas < devices or variant.method.keep is not None:
            continue
        try:
            other = plan_variant(variant)
        except (NoFeasiblePlan, SpecError):
            continue
        ratio = other.samples_per_second / plan.samples_per_second
        if ratio >= _FASTER and other.fits is not False:
            yield (
                f"{devices} replicas with the whole network on a device each would be {factor(ratio)} as fast with {variant.method.name}, "
                f"without staleness, in {memory(other.peak_bytes)} a device: "
                f"set {'; '.join(keys_to_set(spec, variant))}"
            )
            return


def keys_to_set(spec: Spec, variant: Spec) -> list[str]:
    """Return what to set so that a specification is a variant of it, as in `partition.replicas = 8`."""
    keys = [
        *(("method", key) for key in ("name", "schedule", "keep", "accumulation")),
        *(("partition", key) for key in ("replicas", "stages", "devices")),
        ("data", "batch"),
    ]
    found = []
    for table, key in keys:
        before, after = (getattr(getattr(one, table), key) for one in (spec, variant))
        if before != after:
            found.append(f"{table}.{key} = {shown(after)}" if after is not None else f"no {table}.{key}")
    return found


def replace_method(table: MethodSpec, name: str, schedule: RequestedScheduleName) -> MethodSpec:
    """Return a table with another method and schedule, whose nodes keep what the method says."""
    return evolve(table, name=name, schedule=schedule, keep=None, allow_stored=False)


def clip_by_stage(table: OptimizerSpec) -> OptimizerSpec:
    """Return a table that clips by stage, which every method allows; one norm over all stages needs synchronous ones."""
    return table if table.clip is None else evolve(table, clip=evolve(table.clip, scope="stage"))
