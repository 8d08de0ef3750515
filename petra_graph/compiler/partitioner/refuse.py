"""Why nothing fits, and what would make it fit: every remedy named was tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import evolve

from petra_graph.compiler.partitioner.evaluate import Costs
from petra_graph.compiler.partitioner.problem import DeviceBudget, Item, PartitionProblem
from petra_graph.compiler.partitioner.search import find, own_bytes
from petra_graph.errors import NoFeasiblePlan, Problem, shown
from petra_graph.spec.sizes import size_text

_TIMES_DEVICES = (2, 4)
_PARTS_OF_BATCH = (2, 4, 8)


def refusal(task: PartitionProblem, alternatives: Mapping[str, PartitionProblem]) -> NoFeasiblePlan:
    """Return the error for a task that nothing fits, with the remedies that work.

    Args:
        task: what cannot be cut within its limits.
        alternatives: other tasks by what was done for them, such as "schedule = 1f1b".
    """
    label, binding = _binding(task)
    remedies = working_remedies(task, alternatives)
    hint = (
        f"it fits with {' or '.join(remedies)}"
        if remedies
        else f"nothing tried helps: {', '.join(_tried(task, alternatives))}"
    )
    return NoFeasiblePlan(Problem(message=f"{label}; {binding}", hint=hint))


def working_remedies(task: PartitionProblem, alternatives: Mapping[str, PartitionProblem]) -> tuple[str, ...]:
    """Return what makes it fit: more devices, a smaller batch (the least change of each), and of the alternatives."""
    found = []
    for tasks in (_with_more_devices(task), _with_smaller_batch(task)):
        found += [label for label, other in tasks if find(other) is not None][:1]
    return (*found, *(label for label, other in alternatives.items() if find(other) is not None))


def _tried(task: PartitionProblem, alternatives: Mapping[str, PartitionProblem]) -> Iterator[str]:
    yield from (label for label, _ in _with_more_devices(task))
    yield from (label for label, _ in _with_smaller_batch(task))
    yield from alternatives


def _binding(task: PartitionProblem) -> tuple[str, str]:
    """Return the rule that is broken, and the item that breaks it."""
    largest = max(task.items, key=lambda item: own_bytes(task, item))
    most = max(task.limits)
    if own_bytes(task, largest) > most:
        return (
            f"no device can hold node {shown(largest.name)}",
            f"it needs {size_text(own_bytes(task, largest))} by itself, and the largest limit is {size_text(most)}",
        )
    costs = _fairest(task)
    used, limits = costs.device_bytes, task.limits
    worst = max(range(len(used)), key=lambda device: used[device] / limits[device])
    index = task.index
    names = [name for stage in costs.stages if stage.device == worst for name in stage.items]
    heaviest = max((task.items[index[name]] for name in names), key=lambda item: own_bytes(task, item))
    rule = (
        f"nothing found keeps the limits of {len(used)} devices: even where the fullest has as little as can be, "
        f"device {shown(task.devices[worst].name)} needs {size_text(used[worst])} of {size_text(limits[worst])}"
    )
    return rule, f"its largest node is {shown(heaviest.name)} with at least {size_text(own_bytes(task, heaviest))}"


def _fairest(task: PartitionProblem) -> Costs:
    """Return the cut whose fullest device has least, limits aside."""
    free = [evolve(device, memory_bytes=None) for device in task.devices]
    solution = find(evolve(task, devices=free, objective="memory"))
    assert solution is not None, "there are no limits"
    return solution.costs


def _with_more_devices(task: PartitionProblem) -> Iterator[tuple[str, PartitionProblem]]:
    """Yield the task with every device several times, beside itself."""
    for times in _TIMES_DEVICES:
        devices: list[DeviceBudget] = [device for device in task.devices for _ in range(times)]
        if len(devices) <= len(task.items):
            stages = None if task.stages is None else max(task.stages, len(devices))
            yield f"{len(devices)} devices", evolve(task, devices=devices, stages=stages)


def _with_smaller_batch(task: PartitionProblem) -> Iterator[tuple[str, PartitionProblem]]:
    """Yield the task with micro-batches of a half, a quarter, ...: what scales with them shrinks."""
    for parts in _PARTS_OF_BATCH:
        items: list[Item] = [
            evolve(
                item,
                seconds=item.seconds / parts,
                buffer_bytes=-(-item.buffer_bytes // parts),
                working_bytes=-(-item.working_bytes // parts),
            )
            for item in task.items
        ]
        wires = [
            evolve(
                wire,
                forward_bytes=-(-wire.forward_bytes // parts),
                backward_bytes=-(-wire.backward_bytes // parts),
            )
            for wire in task.wires
        ]
        yield f"micro-batches of 1/{parts} the size", evolve(task, items=items, wires=wires)
