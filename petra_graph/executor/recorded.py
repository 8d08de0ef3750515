"""Operations of a stage that are recorded once and then replayed, as CUDA graphs are (`run.cuda_graphs`).

    input --copied--> static input --> [ what was recorded ] --> output in the pool --copied--> output

A recording has fixed addresses. So it reads and writes only what stays where it is: parameters, running statistics, its static
inputs, and static gradients. Everything else that it makes is in a pool, which all recordings of a device share, since one runs at a time;
it is lost at the next one. FIFOs, channels, weights of targets and updates are outside, and move as without recordings. The bits are
those of the same kernels.

    recorded      the forward without a graph, and the backward that reconstructs or recomputes, of each segment
    as written    the head, whose loss the host weighs; forwards that keep their graph until their backward; updates, of two or three
                  kernels each, whose learning rate would have other last bits as a tensor

Gradients: the first backward of a window writes, the others add, as autograd does; each is a recording of its own.

Decision: what draws random numbers stays as written. Graphs would read a seed at each replay, but a node has a seed for each of its
functions, and a graph has one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from petra_graph.blocks import Streams
from petra_graph.blocks.randomness import draws_watched, unseeded

WARM_UP = 3
"""Executions as written before a recording: libraries choose their kernels."""


class Recorder(Protocol):
    """Records the operations of a device."""

    def record(self, operation: Callable[[], Streams]) -> Callable[[], Streams]:
        """Return what executes an operation, which has not been executed; its outputs are in the pool, and lost at the next one there."""
        ...


class CudaGraphs:
    """Records CUDA graphs."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, operation: Callable[[], Streams]) -> Callable[[], Streams]:
        """Capture the operation on the current device."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = operation()

        def replay() -> Streams:
            graph.replay()
            return outputs

        return replay


@define(eq=False)
class RecordedOperation:
    """A function of tensors that is called in a training, as written at first, and then as it was recorded."""

    recorder: Recorder
    what: str
    """As messages name it: 'the backward of node "a"'."""
    gradients: dict[nn.Parameter, Tensor]
    """The static gradients of the parameters to whose gradients it adds; none in a forward."""
    off: str = ""
    """Why it is not recorded."""
    _calls: int = field(default=0, init=False)
    _kept: dict[bool, _Kept] = field(factory=dict, init=False)
    """By whether gradients are written, and not added to."""

    def __call__(self, function: Callable[..., Streams], inputs: Streams) -> Streams:
        """Return function(*inputs)."""
        if self.off:
            return function(*inputs)
        if self._calls < WARM_UP:
            return self._watched(function, inputs)
        first = all(parameter.grad is None for parameter in self.gradients)
        for parameter, own in self.gradients.items():
            # Another one is that of a window that began as written, or before a resumption.
            if parameter.grad is not None and parameter.grad is not own:
                own.copy_(parameter.grad)
                parameter.grad = own
        kept = self._kept.get(first)
        if kept is None and (kept := self._record(function, inputs)) is not None:
            self._kept[first] = kept
        if kept is None or any(own.shape != one.shape for own, one in zip(kept.inputs, inputs, strict=True)):
            return function(*inputs)
        for own, one in zip(kept.inputs, inputs, strict=True):
            own.copy_(one)
        outputs = kept.replay()
        for parameter in kept.reached:
            parameter.grad = self.gradients[parameter]
        return tuple(map(Tensor.clone, outputs))

    def _watched(self, function: Callable[..., Streams], inputs: Streams) -> Streams:
        self._calls += 1
        with draws_watched() as drew:
            outputs = function(*inputs)
        if drew:
            self._stay("it draws random numbers")
        return outputs

    def _record(self, function: Callable[..., Streams], inputs: Streams) -> _Kept | None:
        before = [(parameter, parameter.grad) for parameter in self.gradients]
        static = tuple(torch.empty_like(one) for one in inputs)
        reached: list[nn.Parameter] = []

        def operation() -> Streams:
            outputs = function(*static)
            reached.clear()
            for parameter, own in self.gradients.items():
                found = parameter.grad
                if found is not None:
                    reached.append(parameter)
                    if found is not own:
                        own.copy_(found)
                        parameter.grad = own
            return outputs

        try:
            with unseeded():
                return _Kept(static, self.recorder.record(operation), reached)
        except Exception as error:  # noqa: BLE001  whatever it is, the operation can be executed as it is written
            for parameter, own in before:
                parameter.grad = own
            self._stay(str(error).partition("\n")[0])
            return None

    def _stay(self, reason: str) -> None:
        self.off = reason
        warnings.warn(f"run.cuda_graphs: {self.what} stays as it is written: {reason}", RuntimeWarning, stacklevel=2)


@frozen(eq=False)
class RecordedSegment:
    """The two passes of a segment."""

    forward: RecordedOperation
    backward: RecordedOperation

    @classmethod
    def of(cls, recorder: Recorder, modules: Mapping[str, nn.Module]) -> RecordedSegment:
        """Return a segment, given by its nodes, of which nothing has been recorded yet."""
        nodes = ", ".join(modules)
        trained = {
            one: torch.empty_like(one) for each in modules.values() for one in each.parameters() if one.requires_grad
        }
        return cls(
            RecordedOperation(recorder, f"the forward of {nodes}", {}),
            RecordedOperation(recorder, f"the backward of {nodes}", trained),
        )


@frozen(eq=False)
class _Kept:
    inputs: Streams
    replay: Callable[[], Streams]
    reached: Sequence[nn.Parameter]
    """Those to which it adds gradients."""
