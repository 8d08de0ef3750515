"""How many processes can share the stages, and on what kind of device."""

from __future__ import annotations

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.spec.model import PartitionSpec


def check_processes(stages: int, processes: int) -> None:
    """Check that every process has a stage.

    Raises:
        SpecError: one would have none.
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
        partition: what the specification asks for.
        processes: how many there are.
        available: the kind of device that is used where none is asked for, "cpu" or "cuda".

    Raises:
        SpecError: the specification asks for other devices than processes, or for different kinds.
    """
    asked = partition.devices
    if isinstance(asked, int):
        if asked not in {1, processes}:
            raise _contradiction(asked, f"there are {processes} processes, and each is a device", "leave it out")
        return _numbered(available, processes)
    kinds = {name.partition(":")[0] for name in asked}
    if len(kinds) != 1 or not kinds <= {"cpu", "cuda"}:
        raise _contradiction(asked, "all processes run on one kind of device", '["cpu"] or ["cuda"]')
    return _numbered(kinds.pop(), processes)


def _numbered(kind: str, processes: int) -> tuple[str, ...]:
    return tuple("cpu" if kind == "cpu" else f"cuda:{rank}" for rank in range(processes))


def _contradiction(asked: object, rule: str, hint: str) -> SpecError:
    message = f"partition.devices is {shown(asked)}, but {rule}"
    return SpecError(Problem(message=message, hint=hint, path=("partition", "devices")))
