"""The GPU of each process, where several processes share machines.

Launchers differ in what a process sees: torchrun and mpirun show every process all GPUs of its machine, `srun --gpus-per-task=1`
shows each one its own as number 0, and some set LOCAL_RANK and some do not. GPUs have identifiers that are unique in the
world, so each process takes the first GPU that it sees and that no process of a lower rank has taken: that is the right one in
all these cases.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from petra_graph.errors import SpecError


def visible_gpus() -> list[str]:
    """Return the identifiers of the GPUs that torch sees in this process, in its order."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


def gpu_of(rank: int, visible: Sequence[Sequence[str]], hosts: Sequence[str]) -> int:
    """Return the index of a process's GPU among those that it sees.

    Args:
        visible: the identifiers that each process sees, in the order of ranks.
        hosts: the machine of each process, for the message.

    Raises:
        SpecError: processes of lower ranks have taken all that it sees.
    """
    taken_by: dict[str, int] = {}
    for other, seen in enumerate(visible[: rank + 1]):
        free = next((gpu for gpu in seen if gpu not in taken_by), None)
        if other == rank and free is not None:
            return seen.index(free)
        if free is not None:
            taken_by[free] = other
    own = visible[rank]
    others = ", ".join(str(taken_by[gpu]) for gpu in own)
    plural = "" if len(own) == 1 else "s"
    found = (
        f"{len(own)} CUDA device{plural}, which rank{plural} {others} use{'s' * (not plural)}"
        if own
        else "no CUDA device"
    )
    raise SpecError(
        f"rank {rank} on {hosts[rank]} sees {found}",
        hint='start as many processes as devices, or set partition.devices = ["cpu"]',
    )
