"""Times every operation of every node on the real device, so that plans need not guess.

The network runs as it would be trained, in this process, every node a stage of its own; a stopwatch surrounds each
stage's forward, backward and update. One run a way of keeping activations gives all operations:

    petra                    forward, reverse (reversible nodes), rerun (buffered ones), learn (the head), update
    dsp                      rerun of reversible nodes, from a stored input
    backprop                 record and replay, of a kept graph
    delayed-reconstructed    invert, as what its backward takes beyond a rerun
"""

from __future__ import annotations

import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager

import torch
from attrs import evolve
from torch import Tensor

from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.watch import Watcher
from petra_graph.program.costs import Operation
from petra_graph.program.devices import Link
from petra_graph.program.profile import Profile
from petra_graph.runtime.inline import InlineRuntime
from petra_graph.session.compiled import compile_graph
from petra_graph.session.loader import MicroBatch
from petra_graph.session.prepare import Prepared, fix_arithmetic, prepare_checked
from petra_graph.session.validate import check_spec
from petra_graph.spec.model import AskedName, Kind, MethodSpec

WARM_UP = 3
"""Micro-batches that are not timed: allocators and caches fill."""

_COPIED_BYTES = 2**26

# method, schedule -> what its forward and its backward are, by kind of node
_WAYS: tuple[tuple[str, AskedName, dict[Kind, tuple[Operation, Operation | None]]], ...] = (
    (
        "petra",
        "sequential",
        {"reversible": ("forward", "reverse"), "buffered": ("forward", "rerun"), "head": ("learn", None)},
    ),
    (
        "dsp",
        "sequential",
        {"reversible": ("forward", "rerun"), "buffered": ("forward", "rerun"), "head": ("learn", None)},
    ),
    (
        "backprop",
        "sequential",
        {"reversible": ("record", "replay"), "buffered": ("record", "replay"), "head": ("learn", None)},
    ),
    ("delayed-reconstructed", "lockstep", {"reversible": ("forward", "invert")}),
)


def profile(path: str, overrides: Iterable[str], micro_batches: int) -> Profile:
    """Time a specification's nodes.

    Args:
        path: the specification.
        overrides: `--set` assignments.
        micro_batches: how many are timed; each operation's median counts.

    Raises:
        SpecError, PluginError: as `prepare`.
        RunFailed: the network does not run.
    """
    seconds: dict[str, dict[Operation, float]] = defaultdict(dict)
    outside = 0.0
    checked = check_spec(path, overrides, import_local=True)
    partition = evolve(checked.spec.partition, stages="per-block", memory=None, profile=None, replicas=1)
    ready = prepare_checked(evolve(checked, spec=evolve(checked.spec, partition=partition)))
    fix_arithmetic(ready)
    for method, schedule, meaning in _WAYS:
        setting = _trained_by(ready, method, schedule)
        watches, elsewhere = _timed(setting, micro_batches)
        kinds = {node.name: node.kind for node in setting.compiled.graph.nodes.values()}
        for name, watch in watches.items():
            names = meaning.get(kinds[name])
            if names is None:
                continue
            forward, backward = names
            seconds[name].setdefault(forward, statistics.median(watch.forwards))
            if backward is not None:
                seconds[name].setdefault(backward, statistics.median(watch.backwards))
            seconds[name].setdefault("update", statistics.median(watch.updates))
        outside = outside or elsewhere
    for operations in seconds.values():
        if "invert" in operations:
            operations["invert"] = max(0.0, operations["invert"] - operations["rerun"])
    devices = [torch.device(program.device) for program in ready.compiled.programs]
    costs = ready.costs(ready.compiled.graph, ready.spec)
    return Profile(
        name=ready.spec.name,
        device=_device_name(devices[0]),
        kind="cuda" if devices[0].type == "cuda" else "cpu",
        micro_batch=ready.spec.data.batch,
        compute=ready.spec.precision.compute,
        threads=ready.spec.run.threads,
        nodes=dict(seconds),
        sizes={name: (node.parameters, sum(node.output_bytes)) for name, node in costs.nodes.items()},
        outside=outside,
        link=_link(devices),
    )


def _trained_by(ready: Prepared, method: str, schedule: AskedName) -> Prepared:
    """Return the same run with another method, every node a stage and every micro-batch an update."""
    checked = ready.checked
    clip = checked.spec.optimizer.clip  # one norm over all stages is for synchronous methods only
    spec = evolve(
        checked.spec,
        method=MethodSpec(name=method, schedule=schedule),
        optimizer=evolve(checked.spec.optimizer, clip=clip and evolve(clip, scope="stage")),
    )
    compiled = compile_graph(checked.graph, spec, checked.facts, ready.costs)
    return evolve(ready, checked=evolve(checked, spec=spec), compiled=compiled)


class _Stopwatch(Watcher):
    """Times one stage; on a GPU it waits for the work to be done, before and after."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.forwards: list[float] = []
        self.backwards: list[float] = []
        self.updates: list[float] = []

    def forward(self, micro_batch: int, target: Tensor | None) -> AbstractContextManager[None]:
        """Time a forward."""
        return self._into(self.forwards)

    def backward(self, micro_batch: int) -> AbstractContextManager[None]:
        """Time a backward."""
        return self._into(self.backwards)

    def update(self) -> AbstractContextManager[None]:
        """Time an update."""
        return self._into(self.updates)

    @contextmanager
    def _into(self, times: list[float]) -> Iterator[None]:
        _wait(self.device)
        began = time.perf_counter()
        yield
        _wait(self.device)
        times.append(time.perf_counter() - began)

    @property
    def total(self) -> float:
        """Seconds of everything that was timed after the warm-up."""
        return sum(sum(times[WARM_UP:]) for times in (self.forwards, self.backwards, self.updates))


def _timed(setting: Prepared, micro_batches: int) -> tuple[dict[str, _Stopwatch], float]:
    """Train for some micro-batches, every node a stage; return its watches by node, and the seconds outside of them."""
    executors = setting.executors()
    watches = {executor.program.nodes[0]: _watched(executor) for executor in executors}
    asked = range(WARM_UP + micro_batches)
    starts: list[float] = []
    with closing(endless(setting)) as data:
        InlineRuntime(executors).train(data, asked, lambda _: starts.append(time.perf_counter()))
    # From the head's result of the last warm micro-batch to that of the last one: as many whole micro-batches.
    seconds = (starts[-1] - starts[WARM_UP - 1]) / micro_batches
    inside = sum(watch.total for watch in watches.values()) / micro_batches
    for watch in watches.values():
        for times in (watch.forwards, watch.backwards, watch.updates):
            del times[:WARM_UP]
    return watches, max(0.0, seconds - inside)


def _watched(executor: StageExecutor) -> _Stopwatch:
    watch = _Stopwatch(torch.device(executor.program.device))
    executor.watch(watch)
    return watch


def endless(setting: Prepared) -> Generator[MicroBatch]:
    """Yield micro-batches as training would, epoch after epoch."""
    epoch = 0
    while True:
        yield from setting.training_batches(epoch)
        epoch += 1


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})"


def _link(devices: Sequence[torch.device]) -> Link | None:
    """Time copies of an empty tensor and of one of 64 MiB, from the first device to another one.

    On CPUs alone a copy in memory is timed, which is what a message through shared memory takes. None: one GPU.
    """
    others = [device for device in devices if device != devices[0]]
    if not others and devices[0].type != "cpu":
        return None
    source, target = devices[0], (others or devices)[0]
    seconds = [_copying(source, target, size) for size in (1, _COPIED_BYTES)]
    return Link(latency_seconds=seconds[0], bytes_per_second=_COPIED_BYTES / max(seconds[1] - seconds[0], 1e-9))


def _copying(source: torch.device, target: torch.device, size: int) -> float:
    sent = torch.zeros(size, dtype=torch.uint8, device=source)
    received = torch.empty(size, dtype=torch.uint8, device=target)
    taken = []
    for _ in range(12):
        _wait(source)
        began = time.perf_counter()
        received.copy_(sent)
        _wait(target)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])
