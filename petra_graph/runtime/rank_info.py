"""Where this process stands among all of a run: its rank, its machine, its GPU, its replica.

Launchers differ in what a process sees of GPUs: torchrun and mpirun show every process all GPUs of its machine, `srun --gpus-per-task=1`
shows each one its own as number 0, and some set LOCAL_RANK and some do not. GPUs have identifiers that are unique in the
world, so each process takes the first GPU that it sees and that no process of a lower rank has taken: that is the right one in
all these cases.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from petra_graph.errors import SpecError

JOIN_SECONDS = "PETRA_GRAPH_JOIN_SECONDS"
"""The environment variable with the time within which all processes of a run must have come."""
_USUAL_JOIN_SECONDS = 60.0
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@frozen(kw_only=True)
class RankInfo:
    """This process among all of a run."""

    rank: int
    size: int
    address: str
    port: int
    hosted: bool
    """A launcher keeps the store; otherwise rank 0 does."""
    launch: str
    """Names what a launcher and all attempts that it starts have in the store."""
    attempt: str
    """Names where the processes of one attempt meet in the store."""
    restarts: int
    """How often a launcher has started the run again."""
    join_seconds: float
    """The time within which all processes must have come."""


def rank_info_from(environment: Mapping[str, str]) -> RankInfo | None:
    """Read torchrun's variables; None where there are none, or one process is all.

    Raises:
        SpecError: some are missing or no numbers.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise SpecError(
            f"RANK and WORLD_SIZE are set, but not {', '.join(missing)}",
            hint="start with torchrun or --processes, or set all of " + ", ".join(_NEEDED),
        )
    try:
        size = int(environment["WORLD_SIZE"])
        rank, port = int(environment["RANK"]), int(environment["MASTER_PORT"])
        join_seconds = float(environment.get(JOIN_SECONDS) or _USUAL_JOIN_SECONDS)
    except ValueError as error:
        raise SpecError(f"RANK, WORLD_SIZE, MASTER_PORT and {JOIN_SECONDS} must be numbers: {error}") from None
    if not 0 <= rank < size:
        raise SpecError(f"RANK must lie in 0 .. WORLD_SIZE - 1 (got RANK = {rank}, WORLD_SIZE = {size})")
    if size == 1:
        return None
    names = ("RUN_ID", "RESTART_COUNT", "ERROR_FILE")
    run, restart, error_file = (environment.get(f"TORCHELASTIC_{name}", "") for name in names)
    return RankInfo(
        rank=rank,
        size=size,
        address=environment["MASTER_ADDR"],
        port=port,
        hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        launch=launch_name(run, error_file),
        attempt=f"petra-graph/{run}/{restart}",
        restarts=int(restart) if restart.isdecimal() else 0,
        join_seconds=join_seconds,
    )


def launch_name(run: str, error_file: str = "") -> str:
    """Name what a launcher and its attempts have in the store.

    Args:
        run: as the launcher calls it; torchrun gives all runs the same name, unless it is told one.
        error_file: torchrun's, in a folder that each of its launches creates.
    """
    return f"petra-graph/{run}/launch {error_file.rpartition('/attempt_')[0]}"


def machine_of_process() -> str:
    """Name the machine: equal where /proc/PID means the same process to both; empty where there is no /proc."""
    if sys.platform != "linux":
        return ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino} {os.getuid()}"
    return ""


def visible_gpus() -> list[str]:
    """Return the identifiers of the GPUs that torch sees in this process, in its order."""
    import torch

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
    users = ", ".join(f"rank {taken_by[gpu]}" for gpu in own)
    found = f"{len(own)} CUDA device(s), in use by {users}" if own else "no CUDA device"
    raise SpecError(
        f"rank {rank} on {hosts[rank]} sees {found}",
        hint='start as many processes as devices, or set partition.devices = ["cpu"]',
    )


def pipeline_of(rank: int, stages: Sequence[int], replicas: int, size: int) -> tuple[int, tuple[int, ...]]:
    """Return a rank's replica, and the ranks of that replica's stages.

    Args:
        rank: of a process.
        stages: the process of each stage within its pipeline.
        replicas: pipelines in all.
        size: processes in all.
    """
    each = size // replicas
    replica = rank // each
    return replica, tuple(replica * each + process for process in stages)


def data_parallel_ranks(rank: int, replicas: int, size: int) -> tuple[int, ...]:
    """Return the ranks that host the same stages as `rank`, in the order of replicas."""
    each = size // replicas
    return tuple(rank % each + replica * each for replica in range(replicas))
