"""What is not executed as it is written: recorded operations of a stage (`run.cuda_graphs`), compiled functions of blocks (`run.compile`).

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

A function is compiled whole, for the shapes that it gets, or not at all: else bits would depend on how many stages a process has. A
coupling's residual functions are compiled, and of other blocks `forward` and `inverse`: so each evaluation of the executor calls compiled
code once. Only training calls it: evaluations are those of whoever loads the weights, and no last batch of another size is compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Protocol

import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from petra_graph.blocks import Block, Reversible, Streams
from petra_graph.blocks.couplings import Coupling
from petra_graph.blocks.randomness import current_states, draws_watched, unseeded
from petra_graph.errors import RunFailed

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


# --- compiled functions -------------------------------------------------------------------------------------------------


def compile_functions(node: str, block: Block) -> None:
    """Compile what a node's block computes in training; each function when it is first called with some shapes and types.

    Its functions become attributes of this one object, which is on its device and is not to be copied afterwards.
    """
    import torch._functorch.config as differentiating
    import torch._inductor.config as generating
    from torch._dynamo import convert_frame

    tracing = vars(convert_frame)["config"]  # `torch._dynamo.config` may be another copy of it
    # One code object serves all blocks of a class, and the compiler would give up after 8 shapes of them.
    tracing.recompile_limit = tracing.accumulated_recompile_limit = 2**16
    generating.compile_threads = 1  # processes of its own would outlive an interruption
    if hasattr(generating, "deterministic"):  # torch 2.10
        generating.deterministic = True
    if hasattr(differentiating, "backward_pass_autocast"):  # torch 2.9; `backpropagate` says why
        differentiating.backward_pass_autocast = "off"  # noqa: S105  "pass" is no password here
    names: tuple[str, ...] = ("forward",)
    if isinstance(block, Coupling):
        names = block.functions
    elif isinstance(block, Reversible):
        # One with a backward of its own, such as a permutation of channels, calls neither to go back.
        names = ("forward", "inverse") if type(block).reverse_vjp is Reversible.reverse_vjp else ()
    for name in names:
        setattr(block, name, _compiled(node, block, getattr(block, name)))


def _compiled(node: str, block: Block, function: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(function, dynamic=False, fullgraph=True)
    examined = False

    @wraps(function)
    def call(*streams: Any, **more: Any) -> Any:
        nonlocal examined
        if not block.training:
            return function(*streams, **more)
        if examined:
            return compiled(*streams, **more)
        before = current_states()
        found = compiled(*streams, **more)
        if any(not torch.equal(*states) for states in zip(before, current_states(), strict=True)):
            message = "it draws random numbers, and compiled code does not promise those of a forward to its backward"
            raise RunFailed(
                f'node "{node}" cannot be compiled: {message}', hint="set dropout to 0, or leave out run.compile"
            )
        examined = True
        return found

    return call
