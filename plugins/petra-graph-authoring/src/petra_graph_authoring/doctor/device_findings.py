"""Torch and its devices. A torch that ends the process when it is imported ends the examination, too; what is known by then is printed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from petra_graph.units import memory, plural
from petra_graph_authoring.doctor.environment_findings import Finding

_DRIVER = Path("/proc/driver/nvidia/version")
"""A file that exists if NVIDIA's driver is installed."""
_INSTALL = "https://pytorch.org/get-started/locally"

finding = partial(Finding, area="devices")


def examine_devices(unreadable: Sequence[str] = (), driver: Path = _DRIVER) -> Iterator[Finding]:
    """Yield the findings.

    Args:
        unreadable: distributions whose entry points cannot be read; torch reads all entry points when it is imported.
        driver: see `_DRIVER`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield finding("cpu", "ok", f"{cores} cores, {memory(present)} of memory")
    try:
        import torch

        vision = _examine_torchvision()
    except Exception as error:  # noqa: BLE001  a broken installation raises anything
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        remedy = f"reinstall torch and torchvision, of releases that belong together: {_INSTALL}"
        if unreadable:
            why = f"it cannot be imported: it reads all entry points, and those of {', '.join(unreadable)} are damaged"
            remedy = "reinstall or remove what is damaged"
        yield finding("torch", "broken", why, remedy=remedy)
        return

    cuda, hip = torch.version.cuda, torch.version.hip
    kind = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU only"
    yield finding("torch", "ok", f"{torch.__version__} ({kind}){vision}, {plural(torch.get_num_threads(), 'thread')}")
    if torch.distributed.is_available() and torch.distributed.is_gloo_available():
        nccl = " and nccl" if torch.distributed.is_nccl_available() else ""
        yield finding("processes", "ok", f"torch.distributed with gloo{nccl}")
    else:
        remedy = "install a build of torch with gloo, or run without --processes"
        yield finding("processes", "warning", "torch has no gloo: runs have one process", remedy=remedy)
    yield from _examine_gpus(driver)


def _examine_torchvision() -> str:
    """Return torchvision's version, in words; "" if it is not installed. Torch and a torchvision of other releases fail together."""
    try:
        import torch
        import torchvision
        from torchvision.ops import nms
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        return ""
    nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    return f" and torchvision {torchvision.__version__}"


def _examine_gpus(driver: Path) -> Iterator[Finding]:
    import torch

    try:
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_properties(index).name
            yield finding(f"cuda:{index}", "ok", f"{name}, {memory(total)}, {memory(free)} of it free")
            compute_on(f"cuda:{index}")
    except Exception as error:  # noqa: BLE001  as above
        why = f"cannot compute: {type(error).__name__}: {error}".splitlines()[0]
        remedy = "install a driver that suits this build of torch, or set CUDA_VISIBLE_DEVICES='' to compute on the CPU"
        yield finding("cuda", "broken", why, remedy=remedy)
        return
    if torch.cuda.device_count():
        return
    if not driver.exists():
        yield finding("cuda", "absent", "no GPU")
        return
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") is not None
    why = "CUDA_VISIBLE_DEVICES hides its GPUs" if hidden else "torch finds no GPU"
    if not torch.version.cuda:
        why = "this torch is built for the CPU only"
    remedy = f"install torch for CUDA, if GPUs are to be used: {_INSTALL}"
    yield finding("cuda", "warning", f"NVIDIA's driver is here, and {why}", remedy=remedy)


def compute_on(device: str) -> None:
    import torch

    (torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum().item()
