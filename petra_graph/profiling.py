"""Seconds of every operation of every node on the real device, for plans that need no estimates; on a GPU its host's, and workspaces, too.

The network trains in this process, every node a stage of its own, once for each way of keeping activations; a stopwatch surrounds each
stage's forward, backward and update (`program.node_costs.PROFILED`). An inversion is what the backward of delayed-reconstructed takes beyond a
recompute, and a copy of the parameters what its update takes beyond petra's. Operations are timed in trainings, and not each by itself, so that
caches, CUDA graphs and the host's work are those of a run.

A GPU sleeps until its host has queued the whole operation, by the clock; its own seconds, between two events, then have no gap in which it
waits for the host.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from statistics import median
from typing import Any, TypeVar

import torch
from attrs import evolve
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.executor.stage import StageObserver
from petra_graph.executor.update import wait_for
from petra_graph.planning.check_spec import ProblemCollector, check_spec
from petra_graph.planning.compare_plans import changed, clip_by_stage
from petra_graph.planning.place_network import gpu_type
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.program.device_types import Link
from petra_graph.program.node_costs import PROFILED, Operation, Profile
from petra_graph.program.schedule import Verb
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.stage_io import MicroBatch
from petra_graph.runtime.system import keep_freed_memory
from petra_graph.spec.model import MethodSpec, ScheduleName
from petra_graph.training.prepare import Prepared, fix_arithmetic, prepare

T = TypeVar("T")
WARM_UP = 3  # micro-batches that are not timed: allocators and caches fill
BURST = 5  # micro-batches that one training does before the next training's turn
_CYCLES_A_SECOND = 2e9  # at most, of a GPU's multiprocessors: it sleeps no shorter than it is to
_SLEEP = 2.0  # in the host's seconds for such an operation so far, their median
_LONGEST = 0.05  # seconds, for the first operations load libraries
_COPIED_BYTES = 2**26


def profile(path: str, overrides: Iterable[str], micro_batches: int) -> Profile:
    """Time a specification's nodes, each in at least this number of micro-batches, of which the median counts; SpecError, PluginError: as `prepare`."""
    checked = check_spec(path, overrides)
    apart = changed(checked.spec, partition={"stages": "per-block", "memory": None, "profile": None, "replicas": 1})
    ready = prepare(ProblemCollector(loaded=checked.loaded).require(checked.variant, apart))
    fix_arithmetic(ready)
    keep_freed_memory()
    methods = ("petra", "dsp", "backprop", "delayed-reconstructed")
    trainings = {method: TimedTraining(ready, method) for method in methods}
    for _ in range(-(-micro_batches // BURST)):
        for training in trainings.values():  # in turns, on a machine that drifts
            training.burst(BURST)
    network, spec = ready.network, ready.spec
    devices = [torch.device(program.device) for program in ready.programs]

    def by_node(of: Callable[[Stopwatch, Verb], T]) -> dict[str, dict[Operation, T]]:
        """Return what was measured of each operation."""
        found = dict[str, dict[Operation, T]]()
        for name, node in network.graph.nodes.items():
            timed = PROFILED[node.kind].items()
            found[name] = {key: of(trainings[method].watches[name], verb) for key, (method, verb) in timed}
        return found

    def seconds(of: Callable[[Stopwatch], Mapping[Verb, list[float]]]) -> Mapping[str, Mapping[Operation, float]]:
        """Return medians, of which some are what a training has beyond another one's."""
        found = by_node(lambda watch, verb: median(of(watch)[verb]))
        differences: Sequence[tuple[Operation, Operation]] = (("invert", "recompute"), ("copy", "update"))
        for own in found.values():
            own |= {more: max(0.0, own[more] - own[than]) for more, than in differences if more in own}
        return found

    measured = Profile(
        name=spec.name,
        device=f"cpu ({platform.machine()})",
        device_type="cpu",
        kind="cpu",
        micro_batch=spec.data.batch,
        threads=spec.run.threads,
        settings=network.settings,
        nodes=seconds(lambda watch: watch.times),
        sizes={name: (node.parameters, sum(node.output_bytes)) for name, node in network.costs().nodes.items()},
        outside=median(trainings["petra"].outside),
        link=time_link(devices),
    )
    if devices[0].type != "cuda":
        return measured
    return evolve(
        measured,
        device=torch.cuda.get_device_name(devices[0]),
        device_type=gpu_type(torch.cuda.get_device_properties(devices[0])).name,
        kind="cuda",
        host=seconds(lambda watch: watch.host_times),
        workspace=by_node(lambda watch, verb: watch.workspace[verb]),
    )


class TimedTraining:
    """The training of a method, every node a stage, which works in bursts."""

    def __init__(self, ready: Prepared, method: str) -> None:
        """Warm it up, and weigh its operations on a GPU."""
        schedule: ScheduleName = "lockstep" if method == "delayed-reconstructed" else "sequential"
        table = MethodSpec(name=method, schedule=schedule)  # every micro-batch an update
        network = ready.network.variant(evolve(ready.spec, method=table, optimizer=clip_by_stage(ready.spec.optimizer)))
        placement = evolve(ready.placement, schedule=schedule)
        programs = network.lowering.placed(placement)
        executors = evolve(ready, network=network, placement=placement, programs=programs).executors()
        self.watches: dict[str, Stopwatch] = {}
        for executor in executors:
            watch = self.watches[executor.program.nodes[0]] = Stopwatch(torch.device(executor.program.device))
            executor.observe(watch)
        self._scheduler = Scheduler(executors)
        self._data: Generator[MicroBatch] = (one for epoch in count() for one in ready.opened.epoch(epoch))
        self._done = 0
        self.outside: list[float] = []  # seconds of a micro-batch that no operation takes, burst by burst
        self.burst(WARM_UP)
        if ready.on_cuda and not ready.spec.run.compile:  # compiled code is not called kernel by kernel
            for watch in self.watches.values():
                watch.weighs = True
            self.burst(2)
        self.outside.clear()
        for watch in self.watches.values():
            watch.weighs = False
            watch.times.clear()
            watch.host_times.clear()

    def burst(self, micro_batches: int) -> None:
        before, began = sum(watch.inside for watch in self.watches.values()), time.perf_counter()
        numbers = range(self._done, self._done + micro_batches)
        self._scheduler.train(self._data, numbers, lambda _: None)
        self._done += micro_batches
        inside = sum(watch.inside for watch in self.watches.values()) - before
        self.outside.append(max(0.0, time.perf_counter() - began - inside) / micro_batches)


class _BetweenKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the most bytes that are allocated where no kernel is being called: those of tensors."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.most = torch.cuda.memory_allocated(device)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, torch.cuda.memory_allocated(self._device))
        return result


class Stopwatch(StageObserver):
    """Measures one stage; a GPU's work is done before an operation begins, and before it counts as ended."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.times: dict[Verb, list[float]] = defaultdict(list)  # of the device
        self.host_times: dict[Verb, list[float]] = defaultdict(list)  # until a GPU's host has queued everything
        self.workspace: dict[Verb, int] = defaultdict(int)  # the most bytes that were allocated beyond tensors
        self.inside = 0.0  # seconds of all operations by the clock, with waiting
        self.weighs = False  # whether operations are weighed, and not timed: that takes the host longer

    def forward(self, micro_batch: int, target: Tree | None) -> AbstractContextManager[None]:
        return self._measure("forward")

    def backward(self, micro_batch: int) -> AbstractContextManager[None]:
        return self._measure("backward")

    def update(self) -> AbstractContextManager[None]:
        return self._measure("update")

    @contextmanager
    def _measure(self, verb: Verb) -> Iterator[None]:
        on_gpu, entered = self.device.type == "cuda", time.perf_counter()
        if on_gpu and self.weighs:
            torch.cuda.reset_peak_memory_stats(self.device)
            with _BetweenKernels(self.device) as between:
                yield
            beyond = torch.cuda.max_memory_allocated(self.device) - between.most
            self.workspace[verb] = max(self.workspace[verb], beyond)
            return
        if on_gpu:
            wait_for(self.device)
            sleeps = min(_LONGEST, _SLEEP * median(self.host_times[verb] or [0.0]))
            torch.cuda._sleep(int(_CYCLES_A_SECOND * sleeps))  # type: ignore[no-untyped-call]  # noqa: SLF001  nothing public does it
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            first.record()
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        if on_gpu:
            self.host_times[verb].append(seconds)
            last.record()
            wait_for(self.device)
            seconds = float(first.elapsed_time(last)) / 1e3
        self.times[verb].append(seconds)
        self.inside += time.perf_counter() - entered


def time_link(devices: Sequence[torch.device]) -> Link | None:
    """Time copies of an empty tensor and of one of 64 MiB, from the first device to another one; on CPUs in memory. None: a single GPU has no link."""
    others = [device for device in devices if device != devices[0]]
    if not others and devices[0].type != "cpu":
        return None
    source, target = devices[0], (others or devices)[0]

    def seconds(size: int) -> float:
        sent = torch.zeros(size, dtype=torch.uint8, device=source)
        received = torch.empty(size, dtype=torch.uint8, device=target)
        taken = []
        for _ in range(12):
            wait_for(source)
            began = time.perf_counter()
            received.copy_(sent)
            wait_for(target)
            taken.append(time.perf_counter() - began)
        return median(taken[2:])

    latency = seconds(1)
    return Link(latency_seconds=latency, bytes_per_second=_COPIED_BYTES / max(seconds(_COPIED_BYTES) - latency, 1e-9))
