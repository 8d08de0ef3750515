"""The processes of a pipeline, checked against its stages and its devices."""

from __future__ import annotations

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.spec.model import PartitionSpec


def check_processes(stages: int, processes: int) -> None:
    """Check that every process has a stage.

    Raises:
        SpecError: there are more processes than stages.
    """
    if processes > stages:
        raise SpecError(
            Problem(
                message=f"{processes} processes cannot share {stages} stage{'s' if stages > 1 else ''}",
                hint=f"start at most {stages}, or cut the network into more stages",
                path=("partition", "stages"),
            )
        )


def process_devices(partition: PartitionSpec, processes: int, available: str) -> tuple[str, ...]:
    """Return the device of each process, in the order of ranks, named as if all were on one machine.

    On CUDA each process has the device of its local rank.

    Args:
        partition: the specification's `partition` table.
        processes: number of processes in a pipeline.
        available: the kind of device where the specification names none, "cpu" or "cuda".

    Raises:
        SpecError: the number of devices is not that of the processes, or the devices are of different kinds.
    """
    devices = partition.devices
    if isinstance(devices, int):
        if devices not in {1, processes}:
            raise _contradiction(devices, f"there are {processes} processes, and each is a device", "leave it out")
        return _numbered(available, processes)
    kinds = {name.partition(":")[0] for name in devices}
    if len(kinds) != 1 or not kinds <= {"cpu", "cuda"}:
        raise _contradiction(devices, "all processes run on one kind of device", '["cpu"] or ["cuda"]')
    return _numbered(kinds.pop(), processes)


def _numbered(kind: str, processes: int) -> tuple[str, ...]:
    return tuple("cpu" if kind == "cpu" else f"cuda:{rank}" for rank in range(processes))


def _contradiction(devices: object, rule: str, hint: str) -> SpecError:
    message = f"partition.devices is {shown(devices)}, but {rule}"
    return SpecError(Problem(message=message, hint=hint, path=("partition", "devices")))
