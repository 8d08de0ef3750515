"""A run on several processes of this machine: checked here, once, then left to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from petra_graph.errors import FailedElsewhere, Interrupted, SpecError
from petra_graph.runtime.launch import launch
from petra_graph.runtime.world import place_from
from petra_graph.session.prepare import prepare


def run_on_processes(
    path: str, overrides: Sequence[str], processes: int, flags: Sequence[str], environment: dict[str, str]
) -> None:
    """Train what a specification describes; the processes print and write everything.

    Args:
        path: of the specification.
        overrides: values set on the command line.
        processes: how many, at least 2.
        flags: of the command line, to be passed on.
        environment: this process's own.

    Raises:
        SpecError, PluginError: before anything is started.
        Interrupted: somebody asked to stop.
        FailedElsewhere: the run failed, and has said so.
        RunFailed: it failed, and none of its processes could say so.
    """
    if place_from(environment) is not None:
        raise SpecError(
            "--processes starts processes, and this is already one of several",
            hint="leave --processes out under torchrun",
        )
    if path == "-":
        raise SpecError("a spec from the standard input cannot be read by several processes", hint="write it to a file")
    prepared = prepare(path, overrides, processes)
    available = torch.cuda.device_count()
    if prepared.compiled.programs[0].device.startswith("cuda") and processes > available:
        raise SpecError(
            f"{processes} processes for {available} CUDA devices",
            hint='start fewer, or set partition.devices = ["cpu"]',
        )
    del prepared
    settings = [part for override in overrides for part in ("--set", override)]
    code = launch(["run", path, *settings, *flags], processes)
    if code == Interrupted.exit_code:
        raise Interrupted
    if code:
        raise FailedElsewhere(code)
