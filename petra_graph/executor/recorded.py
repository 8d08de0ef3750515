"""What is not executed as it is written: recorded operations of a stage (`run.record`), compiled functions of blocks (`run.compile`).

    inputs --> [ what was recorded: parameters and running statistics stay where they are ] --> outputs, gradients of parameters

An operation is executed as written at first, then recorded once, and replayed from then on: as a CUDA graph ("graphs"), or as a flat list of
torch's own operations without autograd and modules ("calls"), on any device. A recording reads parameters and reads and writes running
statistics where they are; FIFOs, channels, weights of targets and updates are outside, and move as without recordings. Gradients of parameters
come out of it, and are added here as autograd adds them. The bits are those of the same kernels: the first replays are compared with the
operation as written, on other data than was recorded.

    recorded      the forward without a graph, and the backward that reconstructs or recomputes, of each segment
    as written    the head, whose loss the host weighs; forwards that keep their graph until their backward; updates, of two or three
                  kernels each, whose learning rate would have other last bits as a tensor; batches of other shapes

Decision: what draws random numbers stays as written. Graphs would read a seed at each replay, but a node has a seed for each of its
functions, and a graph has one.

A function is compiled whole, for the shapes that it gets, or not at all: else bits would depend on how many stages a process has. A
coupling's residual functions are compiled, and of other blocks `forward` and `inverse`: so each evaluation of the executor calls compiled
code once. Only training calls it: evaluations are those of whoever loads the weights, and no last batch of another size is compiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial, wraps
from operator import getitem
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn

from petra_graph.blocks import Block, Reversible, Streams
from petra_graph.blocks.couplings import Coupling
from petra_graph.blocks.randomness import current_states, draws_watched, unseeded, within
from petra_graph.errors import RunFailed
from petra_graph.executor.numerics import picked

WARM_UP = 3
"""Executions as written before a recording: libraries choose their kernels."""
COMPARED = 2
"""Replays that are compared with the operation as written."""

Operation = Callable[..., Streams]
"""A function of tensors."""
Recorder = Callable[[Operation, Streams], Operation]
"""Records an operation; returns what executes it again on inputs of the same shapes, with outputs that are the caller's."""


def cuda_graphs() -> Recorder:
    """Return what captures CUDA graphs of the current device.

    A graph has fixed addresses: inputs are copied into static ones, and outputs out of the pool, which all graphs of a device share, since one runs
    at a time.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(operation: Operation, inputs: Streams) -> Operation:
        static = tuple(map(torch.empty_like, inputs))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            pooled = operation(*static)

        def replay(*inputs: Tensor) -> Streams:
            for own, one in zip(static, inputs, strict=True):
                own.copy_(one)
            graph.replay()
            return tuple(map(Tensor.clone, pooled))

        return replay

    return record


def calls(operation: Operation, inputs: Streams) -> Operation:
    """Trace what torch dispatches below autograd, as one flat function; the operation is executed once for it."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second

    return flat_function(make_fx(operation, tracing_mode="real")(*inputs))


_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
"""They mean something to autograd alone."""
_PURE = (torch.ops.aten.clone.default, torch.ops.aten.empty.memory_format, getitem)
"""They do nothing where nobody reads what they return, such as the outputs that a backward computes again."""


def flat_function(traced: fx.GraphModule) -> Operation:
    """Return a traced graph as a function without modules, attributes or look-ups; each value is dropped behind its last use."""
    nodes = traced.graph.nodes
    for node in reversed(nodes):
        if node.target in _ALIASES:
            node.replace_all_uses_with(node.args[0])
        if node.target in _ALIASES or (node.target in _PURE and not node.users):
            traced.graph.erase_node(node)
    read_later: set[fx.Node] = set()
    dropped: dict[fx.Node, list[str]] = {}
    for node in reversed(nodes):
        ends = [one for one in dict.fromkeys((node, *node.all_input_nodes)) if one not in read_later]
        dropped[node] = [one.name for one in ends if one.op != "get_attr"]
        read_later.update(ends)
    bound: dict[str, Any] = {}
    lines: list[str] = []
    for node in nodes:
        if node.op == "get_attr":
            bound[node.name] = getattr(traced, str(node.target))
        elif node.op == "call_function":
            operation = getattr(node.target, "_op", node.target)  # of torch's own, without the look-up of its overload
            given = [_written(one, bound) for one in node.args]
            given += [f"{key}={_written(one, bound)}" for key, one in node.kwargs.items()]
            lines.append(f"{node.name} = {_written(operation, bound)}({', '.join(given)})")
            lines += [f"del {', '.join(dropped[node])}"] if dropped[node] else []
    arguments = [node.name for node in nodes if node.op == "placeholder"]
    lines.append(f"return tuple({_written(traced.graph.output_node().args[0], bound)})")
    exec(f"def flat({', '.join(arguments)}):\n    " + "\n    ".join(lines), bound)  # noqa: S102  as torch.fx does
    return cast(Operation, bound["flat"])


def _written(value: Any, bound: dict[str, Any]) -> str:
    """Return the code of an argument; what is not of the graph gets a name there."""
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(one, bound) for one in value)}]"
    name = f"_k{len(bound)}"
    bound[name] = value
    return name


class RecordedOperation:
    """A function of tensors that is called in a training, as written at first, and then as it was recorded."""

    def __init__(self, recorder: Recorder, what: str, modules: Sequence[nn.Module]) -> None:
        """Record nothing yet; `what` is as messages name it: 'the backward of node "a"'."""
        self.recorder, self.what, self.modules = recorder, what, modules
        self.off = ""
        """Why it is not recorded."""
        trained = (one for module in modules for one in module.parameters() if one.requires_grad)
        self._parameters = list(dict.fromkeys(trained))  # nodes may share one
        self._calls = 0
        self._replay: Operation | None = None
        self._shapes: Sequence[torch.Size] = ()
        """Of the inputs that were recorded."""
        self._outputs = 0
        self._reached: Sequence[nn.Parameter] = ()
        """Those whose gradients it returns behind its outputs."""

    def __call__(self, function: Operation, inputs: Streams) -> Streams:
        """Return function(*inputs)."""
        replay = self._replay
        if self.off or (replay is not None and [one.shape for one in inputs] != self._shapes):
            return function(*inputs)
        if replay is not None and self._calls == WARM_UP + COMPARED:
            with torch.no_grad():
                return self._given(replay(*inputs))
        self._calls += 1
        if replay is not None:
            return self._compared(replay, function, inputs)
        with draws_watched() as drew:
            outputs = function(*inputs)
        if drew:
            self._stay("it draws random numbers, or asks for the micro-batch")
        elif any(map(_hooked, self.modules)):
            self._stay("a hook follows it")
        elif self._calls == WARM_UP:
            self._record(function, inputs)
        return outputs

    def _record(self, function: Operation, inputs: Streams) -> None:
        self._shapes = [one.shape for one in inputs]
        buffers = self._buffers()
        try:
            with within(unseeded, True):
                self._replay = self.recorder(partial(self._apart, function), inputs)
        except Exception as error:  # noqa: BLE001  whatever it is, the operation can be executed as it is written
            self._stay(str(error).partition("\n")[0])
        finally:
            self._restore(buffers)

    def _apart(self, function: Operation, *inputs: Tensor) -> Streams:
        """Return its outputs and the gradients of parameters, which are not added to those of the window."""
        before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        try:
            outputs = function(*inputs)
            found = {one: one.grad for one in self._parameters if one.grad is not None}
        finally:
            for parameter, gradient in zip(self._parameters, before, strict=True):
                parameter.grad = gradient
        self._outputs, self._reached = len(outputs), list(found)
        return (*outputs, *found.values())

    def _compared(self, replay: Operation, function: Operation, inputs: Streams) -> Streams:
        before = self._buffers()
        with torch.no_grad():
            replayed = (*replay(*inputs), *self._buffers())
        self._restore(before)
        written = self._apart(function, *inputs)
        if not all(map(torch.equal, replayed, (*written, *self._buffers()))):
            self._stay("its replay on other data gave other numbers")
        return self._given(written)

    def _given(self, tensors: Streams) -> Streams:
        """Add the gradients as autograd does: the first of a window is kept, the others are added in place."""
        for parameter, one in zip(self._reached, tensors[self._outputs :], strict=True):
            parameter.grad = one if parameter.grad is None else parameter.grad.add_(one)
        return tensors[: self._outputs]

    def _buffers(self) -> list[Tensor]:
        return [one.clone() for module in self.modules for one in module.buffers()]

    def _restore(self, buffers: Sequence[Tensor]) -> None:
        own = (one for module in self.modules for one in module.buffers())
        for one, before in zip(own, buffers, strict=True):
            one.copy_(before)

    def _stay(self, reason: str) -> None:
        self.off = reason
        warnings.warn(f"run.record: {self.what} stays as it is written: {reason}", RuntimeWarning, stacklevel=2)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _hooked(module: nn.Module) -> bool:
    """Whether hooks, which a replay does not call, see what a module computes."""
    of_modules = (hook for part in module.modules() for name in _HOOKS for hook in vars(part)[name].values())
    of_parameters = (one._backward_hooks or one._post_accumulate_grad_hooks for one in module.parameters())  # noqa: SLF001
    return any(map(bool, of_parameters)) or any(getattr(hook, "func", None) is not picked for hook in of_modules)


class RecordedSegment(NamedTuple):
    """The two passes of a segment."""

    forward: RecordedOperation
    backward: RecordedOperation


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
        if not all(map(torch.equal, before, current_states())):
            reason = "it draws random numbers, and compiled code does not promise those of a forward to its backward"
            hint = "set dropout to 0, or leave out run.compile"
            raise RunFailed(f'node "{node}" cannot be compiled: {reason}', hint=hint)
        examined = True
        return found

    return call
