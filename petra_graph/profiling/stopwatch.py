"""What is timed on the real device: a stage's operations, on a GPU its host's seconds, too, and what kernels allocate inside themselves; copies.

    CPU     [ an operation           ]                          by the clock, and of the processor
    host    [ queues kernels ]                                  by the clock
    GPU     [ sleeps                  ][ kernel ][ kernel ]     between two events

A GPU sleeps until its host has queued the whole operation. So its seconds have no gap in which it waits for the host.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from attrs import frozen
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.executor.deferred import wait_for
from petra_graph.executor.stage import StageObserver
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.program.device_types import Link
from petra_graph.program.schedule import Verb

_CYCLES_A_SECOND = 2e9
"""At most, of a GPU's multiprocessors: it sleeps no shorter than it is to."""
_SLEEP, _LONGEST = 2.0, 0.05
"""In the host's seconds for such an operation so far, their median; and in seconds, for the first operations load libraries."""

_COPIED_BYTES = 2**26


@frozen
class Times:
    """The 10th, the 50th and the 90th percentile of an operation's seconds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        tenths = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else [*seconds] * 9
        return cls(tenths[0], statistics.median(seconds), tenths[-1])

    def beyond(self, other: Times) -> Times:
        """Return what these take beyond the median of another operation, which they include."""
        return Times(*(max(0.0, value - other.median) for value in (self.low, self.median, self.high)))


@frozen
class Gpu:
    """What a stopwatch asks of a GPU."""

    device: torch.device

    def sleep(self, seconds: float) -> None:
        """Let it do nothing for at least this time, while its host continues."""
        torch.cuda._sleep(int(_CYCLES_A_SECOND * seconds))  # type: ignore[no-untyped-call]  # noqa: SLF001  nothing public does it

    def mark(self) -> Callable[[], float]:
        """Mark a moment of its work; return a function that gives the seconds from there to the end of what is queued when it is called."""
        began = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        began.record()

        def seconds() -> float:
            ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            ended.record()
            wait_for(self.device)
            return float(began.elapsed_time(ended)) / 1e3

        return seconds

    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device)

    def forget_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Return the most bytes that were allocated since `forget_peak`."""
        return torch.cuda.max_memory_allocated(self.device)


class _BetweenKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the most bytes that are allocated where no kernel is being called: those of tensors."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gpu = gpu
        self.most = gpu.allocated()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, self._gpu.allocated())
        return result


class Stopwatch(StageObserver):
    """Measures one stage; a GPU's work is done before an operation begins, and before it counts as ended."""

    def __init__(self, device: torch.device, gpu: Gpu | None = None) -> None:
        """Begin with nothing.

        Args:
            gpu: the device, as a GPU; None: as `device` says.
        """
        self.device = device
        self.gpu = gpu or (Gpu(device) if device.type == "cuda" else None)
        self.times: dict[Verb, list[float]] = defaultdict(list)
        """Of the device."""
        self.cpu_times: dict[Verb, list[float]] = defaultdict(list)
        """Seconds of the thread on its core, which it has all the time unless something else takes it."""
        self.host_times: dict[Verb, list[float]] = defaultdict(list)
        """Until a GPU's host has queued everything."""
        self.workspace: dict[Verb, int] = defaultdict(int)
        """The most bytes that were allocated beyond tensors."""
        self.inside = 0.0
        """Seconds of all operations by the clock, with waiting."""
        self.weighs = False
        """Whether operations are weighed, and not timed: that takes the host longer."""

    def forward(self, micro_batch: int, target: Tree | None) -> AbstractContextManager[None]:
        return self._measure("forward")

    def backward(self, micro_batch: int) -> AbstractContextManager[None]:
        return self._measure("backward")

    def update(self) -> AbstractContextManager[None]:
        return self._measure("update")

    def spread(self, verb: Verb) -> Times:
        return Times.of(self.times[verb])

    def host_spread(self, verb: Verb) -> Times:
        return Times.of(self.host_times[verb])

    def forget(self) -> None:
        """Forget all times."""
        for times in (self.times, self.cpu_times, self.host_times):
            times.clear()

    def _measure(self, verb: Verb) -> AbstractContextManager[None]:
        if self.gpu is None:
            return self._time(verb)
        return self._weigh(verb, self.gpu) if self.weighs else self._time_beside(verb, self.gpu)

    @contextmanager
    def _time(self, verb: Verb) -> Iterator[None]:
        began, cpu_began = time.perf_counter(), time.thread_time()
        yield
        self._note(verb, time.perf_counter() - began, cpu_began)
        self.inside += self.times[verb][-1]

    @contextmanager
    def _time_beside(self, verb: Verb, gpu: Gpu) -> Iterator[None]:
        entered = time.perf_counter()
        wait_for(self.device)
        gpu.sleep(min(_LONGEST, _SLEEP * statistics.median(self.host_times[verb] or [0.0])))
        device_seconds = gpu.mark()
        began, cpu_began = time.perf_counter(), time.thread_time()
        yield
        self.host_times[verb].append(time.perf_counter() - began)
        self._note(verb, device_seconds(), cpu_began)
        self.inside += time.perf_counter() - entered

    def _note(self, verb: Verb, seconds: float, cpu_began: float) -> None:
        self.times[verb].append(seconds)
        self.cpu_times[verb].append(time.thread_time() - cpu_began)

    @contextmanager
    def _weigh(self, verb: Verb, gpu: Gpu) -> Iterator[None]:
        gpu.forget_peak()
        with _BetweenKernels(gpu) as between:
            yield
        self.workspace[verb] = max(self.workspace[verb], gpu.peak() - between.most)


def time_link(devices: Sequence[torch.device]) -> Link | None:
    """Time copies of an empty tensor and of one of 64 MiB, from the first device to another one.

    On CPUs alone a copy in memory is timed, as a message through shared memory takes. None: a single GPU has no link.
    """
    others = [device for device in devices if device != devices[0]]
    if not others and devices[0].type != "cpu":
        return None
    source, target = devices[0], (others or devices)[0]
    seconds = [_time_copy(source, target, size) for size in (1, _COPIED_BYTES)]
    return Link(latency_seconds=seconds[0], bytes_per_second=_COPIED_BYTES / max(seconds[1] - seconds[0], 1e-9))


def _time_copy(source: torch.device, target: torch.device, size: int) -> float:
    sent = torch.zeros(size, dtype=torch.uint8, device=source)
    received = torch.empty(size, dtype=torch.uint8, device=target)
    taken = []
    for _ in range(12):
        wait_for(source)
        began = time.perf_counter()
        received.copy_(sent)
        wait_for(target)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])
