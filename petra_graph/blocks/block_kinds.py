"""The kinds of blocks: reversible, buffered, head.

Decision: kinds are types. A block's abilities are those that it inherits, so a network cannot claim an inverse that no
code provides, and no code reads a flag.

Streams are the tensors on an edge of the graph, batch dimension first. A block reads the streams of all its inputs in
declared order and returns a tuple of streams; one that returns one stream may return the tensor.

Every backward is a vector-Jacobian product by `backpropagate`. Parameter gradients are added to `grad` by autograd
itself, which keeps the first of a window without a copy and adds the others in place; input gradients are returned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, ClassVar, Literal

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from petra_graph.blocks.randomness import reseed
from petra_graph.blocks.statistics import frozen_statistics
from petra_graph.kinds.declaration import NoOptions


def leaf(stream: Tensor) -> Tensor:
    """Cut `stream` from its graph; floating-point streams get a gradient, others (images, tokens) cannot have one."""
    return stream.detach().requires_grad_(stream.is_floating_point())


def hookable(leaves: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return leaves as a function is to read them: where hooks of all modules are set, as torch's counter of operations does, as views.

    Torch refuses hooks of several tensors on the leaves that `torch.autograd.grad` is asked for.
    """
    if not _has_any_global_hook():  # type: ignore[no-untyped-call]
        return leaves
    return [one.view_as(one) if one.requires_grad else one for one in leaves]


def backpropagate(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Differentiate `outputs`, weighted by `gradients`, with respect to the leaves `inputs` and all parameters.

    Returns:
        The gradient of each input that asks for one, zeros where nothing depends on it; for others an empty tensor,
        which has no meaning and is never read.
    """
    reached: list[Tensor] = []
    weights: list[Tensor] = []
    for output, gradient in zip(outputs, gradients, strict=True):
        if output.requires_grad:
            reached.append(output)
            weights.append(gradient)
    if reached:
        kind = reached[0].device.type
        if _autocasts(kind) and torch.is_autocast_enabled(kind):
            # Autocast belongs to the evaluation: float32 computations of a block are differentiated in float32.
            with torch.autocast(kind, enabled=False):
                return backpropagate(reached, weights, inputs)
        differentiate = _differentiate.get()
        if differentiate is not None:
            found = iter(differentiate(reached, weights, [stream for stream in inputs if stream.requires_grad]))
            return tuple(_gradient(one, next(found) if one.requires_grad else None) for one in inputs)
        _run_backward(
            tuple(reached),
            tuple(weights),
            False,
            False,
            (),
            allow_unreachable=True,
            accumulate_grad=True,
        )
    gradients = []
    for stream in inputs:
        gradients.append(stream.grad if stream.grad is not None else _gradient(stream, None))
    return tuple(gradients)


# What `torch.autograd.backward` calls, for as long as it takes to compare shapes in Python that the engine compares again;
# Megatron-LM's pipeline calls it, too.
_run_backward = torch.autograd.Variable._execution_engine.run_backward  # noqa: SLF001
_autocasts = cache(torch.amp.is_autocast_available)


Differentiate = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor | None]]
"""Outputs, their gradients, inputs -> the gradient of each input; None where nothing depends on it."""

_differentiate: ContextVar[Differentiate | None] = ContextVar("petra_graph_differentiate", default=None)


@contextmanager
def differentiated_by(differentiate: Differentiate | None) -> Iterator[None]:
    """Make `backpropagate` call `differentiate`, which disposes of the gradients of parameters itself; None: it adds to `grad`."""
    token = _differentiate.set(differentiate)
    try:
        yield
    finally:
        _differentiate.reset(token)


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off on a type of device, where it is on; the meta device has none."""
    if not _autocasts(device_type) or not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def _gradient(stream: Tensor, gradient: Tensor | None) -> Tensor:
    if not stream.requires_grad:
        return stream.new_empty(0)
    return torch.zeros_like(stream) if gradient is None else gradient


Shape = tuple[int, ...]
"""The shape of one stream without its batch dimension."""

Streams = tuple[Tensor, ...]


def as_streams(returned: Streams | Tensor) -> Streams:
    """Return a tensor as a tuple of one stream; anything else, whatever a block returned, as it is."""
    return (returned,) if isinstance(returned, Tensor) else returned


class Block(nn.Module):
    """A node's module, built from the shapes that it will read and its options.

    Subclass `Buffered`, `Reversible` (usually through `AdditiveCoupling`) or `Head`, not this.
    """

    Options: ClassVar[type] = NoOptions
    """Frozen attrs class of the block's own options."""
    kind: ClassVar[Literal["reversible", "buffered", "head"]]
    streams: ClassVar[int | None] = None
    """The number of tensors that the block reads; None: any number."""
    undecayed: ClassVar[Sequence[str]] = ()
    """Names of parameters without weight decay, beside biases and normalisations: ("scale", "token.*"); * is any text."""
    tables: Sequence[str] = ()
    """Names of parameters with a row for each token, position or class, beside `nn.Embedding` and a head's: ("positions",), which an instance may set."""

    shared_parameters: Mapping[str, str] = {}
    """Parameters and buffers that other nodes have too, each with one name for all of them: {"weight": "embedding"}, which an instance may set."""

    of_network: Callable[[], nn.Module] | None = None
    """What makes the network of which it is a part, whose `state_dict` has its names, by which it is exported; an instance may set it."""

    def __init__(self, inputs: Sequence[Shape], options: Any) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.options = options

    @abstractmethod
    def forward(self, *streams: Tensor) -> Streams | Tensor:
        """Map input streams [n, *shape] to output streams [n, *shape]."""

    def __call__(self, *streams: Tensor) -> Streams:
        """Return the output streams of `forward`."""
        returned = super().__call__(*streams)
        return (returned,) if isinstance(returned, Tensor) else returned


class Buffered(Block):
    """A block without an inverse: its input waits in a buffer, and its backward runs it again."""

    kind = "buffered"


class Head(Block):
    """The last block: what it returns, the loss compares with the targets: one tensor, or a tuple of them."""

    kind = "head"

    def returned(self, streams: Streams) -> Any:
        """Return what the loss is called with, of the streams of a forward: a tensor, or tensors in a structure."""
        return streams[0] if len(streams) == 1 else streams


@frozen
class Reversed:
    """The result of a backward: a segment's input (reconstructed by a reversible block), and the gradient with respect to it."""

    inputs: Streams
    gradients: Streams


@frozen(eq=False)
class Undone:
    """A step of a block, of which the function has been evaluated with a graph: `vjp` is called first, then `inputs`, each once."""

    inputs: Callable[[], Streams]
    """Returns the streams before the step."""
    vjp: Callable[[Streams], Streams]
    """Maps the gradients of the streams after the step to those of the streams before it, by `backpropagate`."""


Undo = Callable[[Streams], Undone]
"""The streams after a step -> what undoes it."""


class Reversible(Block):
    """A block whose input follows from its output, in its shapes; they may differ from the output's.

    Override `inverse`. Override `reverse_steps` too where inverse and gradient share work, as couplings do.
    """

    kind = "reversible"

    @abstractmethod
    def inverse(self, *outputs: Tensor) -> Streams | Tensor:
        """Reconstruct the input streams from the output streams."""

    def invert(self, *outputs: Tensor) -> Streams:
        """Return the input streams of `inverse`."""
        return as_streams(self.inverse(*outputs))

    def reverse_steps(self) -> Sequence[Undo]:
        """Return what undoes the block's steps, the last step first.

        This default has one step, and evaluates the block twice: once to invert, once to differentiate; running statistics
        follow the second alone (PETRA algorithm 1, lines 13 to 18).
        """
        return (partial(_inverted_and_evaluated, self),)

    def reverse_vjp(self, outputs: Streams, gradients: Streams) -> Reversed:
        """Reconstruct the input, and differentiate there with the current parameters, one step after the other.

        Parameter gradients are added to each parameter's `grad`. The graph of one step lives at a time.

        Args:
            outputs: the output streams, without a graph.
            gradients: the loss's gradient with respect to each of them.
        """
        for undo in self.reverse_steps():
            undone = undo(outputs)
            # The gradient first: what its graph has saved is free before the streams are made.
            gradients = undone.vjp(gradients)
            outputs = undone.inputs()
            del undone
        return Reversed(outputs, gradients)


def _inverted_and_evaluated(block: Reversible, outputs: Streams) -> Undone:
    with torch.no_grad(), frozen_statistics(block):
        inputs = block.invert(*outputs)
    reseed()
    leaves = tuple(map(leaf, inputs))
    with torch.enable_grad():
        recomputed = block(*hookable(leaves))
    return Undone(
        lambda: tuple(stream.detach() for stream in leaves),
        lambda gradients: backpropagate(recomputed, gradients, leaves),
    )
