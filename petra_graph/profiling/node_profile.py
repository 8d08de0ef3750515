"""Seconds of every operation of every node on the real device, for plans that need no estimates; on a GPU its host's, and workspaces, too.

The network trains in this process, every node a stage of its own; a stopwatch surrounds each stage's forward, backward
and update. One training for each way of keeping activations gives all operations:

    petra                    forward, reverse (reversible nodes), recompute (buffered ones), forward_backward (head), update
    dsp                      recompute of reversible nodes, from a stored input
    backprop                 record and replay, of a kept graph
    delayed-reconstructed    invert and copy, as what its backward takes beyond a recompute, and its update beyond petra's
"""

from __future__ import annotations

import platform
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import torch
from attrs import evolve

from petra_graph.planning.check.check_spec import check_spec
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.planning.share_devices import clip_by_stage
from petra_graph.planning.spec_devices import gpu_type
from petra_graph.profiling.stopwatch import Stopwatch, Times, time_link
from petra_graph.program.node_costs import Operation, Profile
from petra_graph.program.schedule import Verb
from petra_graph.runtime.keep_freed_memory import keep_freed_memory
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.stage_io import MicroBatch
from petra_graph.spec.model import Kind, MethodSpec, ScheduleName
from petra_graph.training.prepare import Prepared, fix_arithmetic, prepare_checked

WARM_UP = 3
"""Micro-batches that are not timed: allocators and caches fill."""
BURST = 5
"""Micro-batches that one training does before the next training's turn."""
T = TypeVar("T")
_Found = dict[str, dict[Operation, T]]
"""By node and operation."""
_Operations = Mapping[Kind, tuple[Operation, Operation | None]]
"""The operations of a forward and a backward, by kind of node."""
_HEAD: _Operations = {"head": ("forward_backward", None)}
_RECOMPUTE: _Operations = {"buffered": ("forward", "recompute")}
_TRAININGS: tuple[tuple[str, ScheduleName, _Operations], ...] = (
    ("petra", "sequential", {"reversible": ("forward", "reverse"), **_RECOMPUTE, **_HEAD}),
    ("dsp", "sequential", {"reversible": ("forward", "recompute"), **_RECOMPUTE, **_HEAD}),
    ("backprop", "sequential", {"reversible": ("record", "replay"), "buffered": ("record", "replay"), **_HEAD}),
    ("delayed-reconstructed", "lockstep", {"reversible": ("forward", "invert"), **_RECOMPUTE}),
)


def profile(path: str, overrides: Iterable[str], micro_batches: int) -> Profile:
    """Time a specification's nodes.

    Args:
        path: the specification.
        overrides: `--set` assignments.
        micro_batches: how many are timed, at least; each operation's median counts.

    Raises:
        SpecError, PluginError: as `prepare`.
        RunFailed: the network does not run.
    """
    checked = check_spec(path, overrides, import_local=True)
    partition = evolve(checked.spec.partition, stages="per-block", memory=None, profile=None, replicas=1)
    problems = ProblemCollector(loaded=checked.loaded)
    ready = prepare_checked(problems.require(checked.variant, evolve(checked.spec, partition=partition)))
    fix_arithmetic(ready)
    keep_freed_memory()
    trainings = start_trainings(ready)
    for _ in range(-(-micro_batches // BURST)):
        for training in trainings:
            training.burst(BURST)
    return profile_of(ready, trainings)


def start_trainings(ready: Prepared) -> list[TimedTraining]:
    """Return the trainings that time all operations, each warm."""
    trainings = [
        TimedTraining(_train_by(ready, method, schedule), operations) for method, schedule, operations in _TRAININGS
    ]
    for training in trainings:
        training.burst(WARM_UP)
        if ready.on_cuda and not ready.spec.run.compile:  # compiled code is not called kernel by kernel
            training.weigh()
        training.forget()
    return trainings


def profile_of(ready: Prepared, trainings: Sequence[TimedTraining]) -> Profile:
    devices = [torch.device(program.device) for program in ready.programs]
    on_gpu = devices[0].type == "cuda"
    seconds = _operation_seconds(trainings, Stopwatch.spread)
    host = _operation_seconds(trainings, Stopwatch.host_spread) if on_gpu else {}
    wall, cpu = map(sum, zip(*(training.wall_and_cpu() for training in trainings), strict=True))
    network, spec = ready.network, ready.spec
    costs = network.costs()
    return Profile(
        name=spec.name,
        device=torch.cuda.get_device_name(devices[0]) if on_gpu else f"cpu ({_processor()})",
        device_type=gpu_type(torch.cuda.get_device_properties(devices[0])).name if on_gpu else "cpu",
        kind="cuda" if on_gpu else "cpu",
        micro_batch=spec.data.batch,
        threads=spec.run.threads,
        settings=network.settings,
        nodes=_medians(seconds),
        host=_medians(host),
        workspace=_merge(trainings, lambda watch, verb: watch.workspace[verb]) if on_gpu else {},
        sizes={name: (node.parameters, sum(node.output_bytes)) for name, node in costs.nodes.items()},
        outside=trainings[0].outside(),
        link=time_link(devices),
        wall_seconds=wall,
        cpu_seconds=None if on_gpu else cpu,
    )


def _operation_seconds(trainings: Sequence[TimedTraining], of: Callable[[Stopwatch, Verb], Times]) -> _Found[Times]:
    """Return the seconds of all operations, by node: those that a training has beyond another one's, too."""
    seconds = _merge(trainings, of)
    last = _merge(trainings[::-1], of)
    for name, operations in seconds.items():
        if "invert" in operations:
            operations["invert"] = operations["invert"].beyond(operations["recompute"])
        if "recompute" in operations:
            operations["copy"] = last[name]["update"].beyond(operations["update"])
    return seconds


def _merge(trainings: Sequence[TimedTraining], of: Callable[[Stopwatch, Verb], T]) -> _Found[T]:
    """Return what was measured of each operation, by node, in the first training that has it."""
    found: _Found[T] = defaultdict(dict)
    for training in trainings:
        for name, operations in training.by_operation(of).items():
            found[name] = operations | found[name]
    return found


def _medians(found: _Found[Times]) -> Mapping[str, Mapping[Operation, float]]:
    return {name: {key: times.median for key, times in own.items()} for name, own in found.items()}


def _processor() -> str:
    """Return the processor's model, as Linux knows it; elsewhere its architecture."""
    with suppress(OSError):
        cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^model name\s*:\s*(.+)$", cpus, re.MULTILINE):
            return found[1].strip()
    return platform.machine()


def _train_by(ready: Prepared, method: str, schedule: ScheduleName) -> Prepared:
    """Return the same run with another method, every node a stage and every micro-batch an update."""
    spec = evolve(
        ready.spec,
        method=MethodSpec(name=method, schedule=schedule),
        optimizer=clip_by_stage(ready.spec.optimizer),
    )
    network = ready.network.variant(spec)
    placement = evolve(ready.placement, schedule=schedule)
    return evolve(ready, network=network, placement=placement, programs=network.programs(placement))


class TimedTraining:
    """One training, every node a stage; it works in bursts, so that trainings can take turns on a machine that drifts."""

    def __init__(self, prepared: Prepared, operations: _Operations) -> None:
        self._operations = operations
        self._kinds = {node.name: node.kind for node in prepared.network.graph.nodes.values()}
        executors = prepared.executors()
        self._watches: dict[str, Stopwatch] = {}
        for executor in executors:
            watch = self._watches[executor.program.nodes[0]] = Stopwatch(torch.device(executor.program.device))
            executor.observe(watch)
        self._scheduler = Scheduler(executors)
        self._data = repeat_epochs(prepared)
        self._done = 0
        self._outside: list[float] = []

    def burst(self, micro_batches: int) -> None:
        inside = self._inside()
        numbers = range(self._done, self._done + micro_batches)
        began = time.perf_counter()
        self._scheduler.train(self._data, numbers, lambda _: None)
        seconds = time.perf_counter() - began
        self._done += micro_batches
        self._outside.append(max(0.0, seconds - (self._inside() - inside)) / micro_batches)

    def weigh(self) -> None:
        """Do two micro-batches in which a GPU's operations are weighed."""
        for weighs in (True, False):
            for watch in self._watches.values():
                watch.weighs = weighs
            if weighs:
                self.burst(2)

    def forget(self) -> None:
        self._outside.clear()
        for watch in self._watches.values():
            watch.forget()

    def outside(self) -> float:
        """Seconds of a micro-batch that no operation takes."""
        return statistics.median(self._outside)

    def by_operation(self, of: Callable[[Stopwatch, Verb], T]) -> dict[str, dict[Operation, T]]:
        """Return what `of` says of each operation that this training is for, by node."""
        found: dict[str, dict[Operation, T]] = {}
        for name, watch in self._watches.items():
            names = self._operations.get(self._kinds[name])
            if names is not None:
                forward, backward = names
                found[name] = {forward: of(watch, "forward"), "update": of(watch, "update")}
                if backward is not None:
                    found[name][backward] = of(watch, "backward")
        return found

    def wall_and_cpu(self) -> tuple[float, float]:
        """Return the sums of all operations' medians, by the clock and of the processor."""
        wall, cpu = (
            sum(statistics.median(found) for watch in self._watches.values() for found in times(watch).values())
            for times in (attrgetter("times"), attrgetter("cpu_times"))
        )
        return wall, cpu

    def _inside(self) -> float:
        return sum(watch.inside for watch in self._watches.values())


def repeat_epochs(prepared: Prepared) -> Generator[MicroBatch]:
    """Yield micro-batches as training would, epoch after epoch."""
    epoch = 0
    while True:
        yield from prepared.opened.epoch(epoch)
        epoch += 1
