"""Torch and its devices, as another process finds them: a broken torch may end the process that imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from petra_graph.doctor.finding import Finding
from petra_graph.program.channels import carrier
from petra_graph.runtime.control.rank_info import machine_of_process
from petra_graph.units import memory, plural

_SECONDS = 180.0
"""The longest that importing torch may take."""
_PROBE = """
import json, sys
import torch, torchvision
from torchvision.ops import nms
nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
found = {
    "torch": torch.__version__, "torchvision": torchvision.__version__, "threads": torch.get_num_threads(),
    "cuda": torch.version.cuda, "hip": torch.version.hip, "distributed": torch.distributed.is_available(), "gpus": [], "error": "",
}
if found["distributed"]:
    found["gloo"], found["nccl"] = torch.distributed.is_gloo_available(), torch.distributed.is_nccl_available()
try:
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found["gpus"].append([about.name, total, free])
        (torch.ones(8, 8, device=f"cuda:{index}") @ torch.ones(8, 8, device=f"cuda:{index}")).sum().item()
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(found))
"""

finding = partial(Finding, area="devices")


def examine_devices(
    executable: str = sys.executable,
    driver: Path = Path("/proc/driver/nvidia/version"),
    *,
    unreadable: Sequence[str] = (),
) -> Iterator[Finding]:
    """Yield the findings.

    Args:
        executable: of Python.
        driver: a file that exists where NVIDIA's driver is installed.
        unreadable: distributions whose entry points cannot be read; torch reads all entry points when it is imported.
    """
    found, fault = _probed(executable)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield finding("cpu", "ok", f"{cores} cores, {memory(present)} of memory")
    if found is None:
        remedy = (
            "reinstall torch and torchvision, of releases that belong together: https://pytorch.org/get-started/locally"
        )
        if unreadable:
            fault = (
                f"it cannot be imported: it reads all entry points, and those of {', '.join(unreadable)} are damaged"
            )
            remedy = "reinstall or remove what is damaged"
        yield finding("torch", "broken", fault, remedy=remedy)
        return
    kind = f"CUDA {found['cuda']}" if found["cuda"] else f"ROCm {found['hip']}" if found["hip"] else "CPU only"
    text = f"{found['torch']} ({kind}) and torchvision {found['torchvision']}, {plural(found['threads'], 'thread')}"
    yield finding("torch", "ok", text)
    yield _distributed(found)
    if found.get("gloo"):
        yield finding("transports", "ok", _transports(found))
    yield from _gpus(found, driver)


def _probed(executable: str) -> tuple[dict[str, Any] | None, str]:
    """Return what another process finds, or why it found nothing."""
    command = [executable, "-P", "-c", _PROBE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(  # noqa: S603  the command is ours
            command, capture_output=True, text=True, check=False, timeout=_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return None, f"importing it takes more than {_SECONDS:g} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        values: dict[str, Any] = json.loads(lines[-1])
        return values, ""
    said = [line for line in done.stderr.strip().splitlines() if line.strip()]
    return None, said[-1].strip() if said else f"importing it ends the process with code {done.returncode}"


def _distributed(found: Mapping[str, Any]) -> Finding:
    backends = [name for name in ("gloo", "nccl") if found.get(name)]
    if "gloo" not in backends:
        remedy = "install a build of torch with gloo, or run without --processes"
        return finding("processes", "warning", "torch has no gloo: runs have one process", remedy=remedy)
    return finding("processes", "ok", f"torch.distributed with {' and '.join(backends)}")


def _transports(found: Mapping[str, Any]) -> str:
    """Return what can carry messages between processes of this machine, and why NCCL cannot."""
    usual = carrier("auto", same_process=False, same_machine=bool(machine_of_process()))
    asked = dict.fromkeys((usual, carrier("process-group", same_process=False, same_machine=True)))
    reasons = {
        "this torch has none": not found.get("nccl"),
        "no GPU": not found["gpus"],
        "GPUs cannot compute": bool(found["error"]),
        "it takes one process a GPU, and here is one GPU": len(found["gpus"]) == 1,
    }
    refused = next((why for why, holds in reasons.items() if holds), "")
    return f"{' and '.join(asked)} between processes here; nccl: {f'no, {refused}' if refused else 'yes, though nobody has run it'}"


def _gpus(found: Mapping[str, Any], driver: Path) -> Iterator[Finding]:
    for index, (name, total, free) in enumerate(found["gpus"]):
        text = f"{name}, {memory(total)}, {memory(free)} of it free"
        yield finding(f"cuda:{index}", "ok", text)
    if found["error"]:
        remedy = "install a driver that suits this build of torch, or set CUDA_VISIBLE_DEVICES='' to compute on the CPU"
        yield finding("cuda", "broken", f"cannot compute: {found['error']}", remedy=remedy)
    elif not found["gpus"] and driver.exists():
        why = (
            "CUDA_VISIBLE_DEVICES hides its GPUs"
            if os.environ.get("CUDA_VISIBLE_DEVICES") is not None
            else "torch finds no GPU"
        )
        if not found["cuda"]:
            why = "this torch is built for the CPU only"
        remedy = "install torch for CUDA, if GPUs are to be used: https://pytorch.org/get-started/locally"
        yield finding("cuda", "warning", f"NVIDIA's driver is here, and {why}", remedy=remedy)
    elif not found["gpus"]:
        yield finding("cuda", "absent", "no GPU")
