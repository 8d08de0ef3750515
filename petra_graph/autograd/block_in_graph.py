"""One block in the graph of autograd: its forward keeps nothing, its backward undoes it.

    forward     streams ─ block 0 ─ block 1 ─ ... ─ block L-1 (keeps its outputs)
    backward    streams of block i's output: left by block i+1, which has reconstructed them

Decision: each block is a node of its own, which has the block's parameters as inputs. So autograd itself accumulates
every gradient as soon as it is known, one block after the other: hooks fire once, data-parallel buckets fill during the
backward, `torch.autograd.grad` works. A block gets the outputs that it undoes from the node after it, which autograd
always runs before: its only way to a gradient.

Decision: while a block is undone, its modules hold what they held in its forward, with leaves over the memory of its parameters. Their
gradients are returned by the node, and a forward under `torch.func.functional_call` needs nothing of its own. Everything that functions read
is saved as torch saves the inputs of its own functions, so torch itself refuses a backward where one of them was changed in place.

Decision: random numbers follow from one key that is drawn for each forward, as in a stage (`petra_graph.blocks.randomness`), and
no generator's state is stored: the memory does not grow with depth, and a coupling that evaluates its functions in the
opposite order still gives each its own masks.

Decision: blocks that train are evaluated one at a time in a process. Torch has one generator of the host, and one switch of
running statistics a module: threads that seed the one and turn the other would train on each other's masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_unflatten

from petra_graph.blocks import Reversible, Streams, frozen_statistics
from petra_graph.blocks.couplings import owned
from petra_graph.blocks.randomness import fork_rng, random_key, within

_ALONE = RLock()
"""Held by the thread that evaluates a block."""


@define(eq=False)
class SequenceCall:
    """One forward through a sequence: what its backward must know to evaluate every block as the forward did."""

    arguments: tuple[Any, ...]
    """What functions read besides a stream, with any structure taken apart; None where a differentiated tensor goes."""
    places: tuple[int, ...]
    """Of the differentiated tensors among them."""
    structure: TreeSpec
    device: torch.device
    function_dtype: torch.dtype | None
    """Functions read streams in this type; None: as they are."""
    key: int | None
    """Of the random numbers; None: functions draw from the generators as they are."""
    autocast_dtype: torch.dtype | None
    """Autocast in force; None: it is off."""
    last: int
    """The last block that is undone."""
    left: dict[int, Streams] = field(factory=dict, init=False)
    """For each backward, as autograd counts them, the outputs of the next block to be undone."""

    @contextmanager
    def block(self, index: int) -> Iterator[None]:
        """Set random numbers, autocast and arguments for an evaluation of block `index`, which no other thread's overlaps."""
        with _ALONE, ExitStack() as stack:
            if self.key is not None:
                stack.enter_context(fork_rng(random_key(self.key, index), self.device))
            stack.enter_context(within(current, self))
            if self.autocast_dtype is not None or autocast_in_force(self.device) is not None:
                # Torch before 2.10 keeps weights that were cast without a graph, for evaluations that need one.
                enabled = self.autocast_dtype is not None
                autocast = torch.autocast(self.device.type, self.autocast_dtype, enabled=enabled, cache_enabled=False)
                stack.enter_context(autocast)
            yield


current: ContextVar[SequenceCall | None] = ContextVar("petra_graph_reversible_call", default=None)
"""The call whose arguments all functions read."""


def evaluated(function: Callable[..., Tensor], x: Tensor, *differentiated: Tensor) -> Tensor:
    """Return function(x, arguments...) with the arguments of the call in force."""
    call = current.get()
    if call is None:
        return function(x, *differentiated)
    leaves = list(call.arguments)
    for at, tensor in zip(call.places, differentiated, strict=True):
        leaves[at] = tensor
    positional, named = tree_unflatten(leaves, call.structure)
    return function(x if call.function_dtype is None else x.to(call.function_dtype), *positional, **named)


def autocast_in_force(device: torch.device) -> torch.dtype | None:
    """Return the type that autocast computes in on a device; None where it is off."""
    if not torch.amp.is_autocast_available(device.type) or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def draw_key() -> int:
    """Draw a key from torch's generator of the host: `torch.manual_seed` fixes it, and no accelerator is waited for."""
    # Not while another thread's key is in force; and tensors of modes, such as fake ones, may have no values.
    with _ALONE, _disable_current_modes():
        return int(torch.randint(2**62, (), device="cpu"))


@define(eq=False)
class _Step:
    """A block in one forward."""

    block: Reversible
    index: int
    call: SequenceCall
    anchor: bool
    """Whether it keeps its outputs: the last block, or one from which reconstruction begins again."""
    streams: int
    """Number of streams; the differentiated arguments follow them, then the parameters."""
    differentiated: int
    held: list[tuple[dict[str, Any], str, Any]] = field(factory=list, init=False)
    """The parameters, buffers and modes of its modules: a module's table, a name there, the value."""
    trained: list[Tensor] = field(init=False)
    """The parameters that require a gradient, each once, also where modules share it."""
    read: list[tuple[str, Tensor]] = field(factory=list, init=False)
    """The names and tensors of those that its functions may read; torch counts the changes of all but those of inference mode."""

    def __attrs_post_init__(self) -> None:
        for module in self.block.modules():
            self.held.append((vars(module), "training", module.training))
            # In training, torch's own normalisations use the batch's statistics, and `frozen_statistics` stops the running ones.
            normalises = module.training and type(module).__module__.startswith("torch.")
            follows = normalises and getattr(module, "track_running_stats", None) is not None
            # The tables themselves, since `named_parameters` is ten times slower.
            for table, what in ((module._parameters, "parameter"), (module._buffers, "buffer")):  # noqa: SLF001
                own = [(name, value) for name, value in table.items() if value is not None]
                self.held += [(table, name, value) for name, value in own]
                if what == "parameter" or not follows:
                    self.read += [(f"{what} {name}", value) for name, value in own if not value.is_inference()]
        parameters = (value for table, _, value in self.held if isinstance(value, Tensor) and value.requires_grad)
        self.trained = list({id(value): value for value in parameters}.values())

    @contextmanager
    def as_it_was(self) -> Iterator[list[nn.Parameter]]:
        """Give the modules what they held in the forward; instead of `trained`, leaves over their memory, which are returned."""
        leaves = [nn.Parameter(value.detach()) for value in self.trained]
        leaf_of = dict(zip(map(id, self.trained), leaves, strict=True))
        before = []
        try:
            for table, name, held in self.held:
                value = leaf_of.get(id(held), held)
                if table.get(name) is not value:
                    before.append((table, name, table.get(name)))
                    table[name] = value
            yield leaves
        finally:
            for table, name, own in before:
                table[name] = own


def undoable(
    block: Reversible, index: int, call: SequenceCall, streams: Streams, differentiated: Streams, *, anchor: bool
) -> Streams:
    """Run a block; the outputs have a graph that keeps no activation.

    Raises:
        RuntimeError: it writes to a buffer, which its backward would read.
    """
    with _ALONE:
        step = _Step(block, index, call, anchor, len(streams), len(differentiated))
        before = [one._version for _, one in step.read]  # noqa: SLF001  as autograd counts changes in place
        outputs: Streams = _Node.apply(step, *streams, *differentiated, *step.trained)
        written = [name for (name, one), version in zip(step.read, before, strict=True) if one._version != version]  # noqa: SLF001
    if written:
        raise RuntimeError(
            f"petra_graph.reversible: {written[0]} was modified in the forward of block {index}, so that its backward would "
            "compute other values; let functions return what they remember, or set keep_graphs=len(sequence)"
        )
    return outputs


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: _Step, *read: Tensor) -> Streams:
        """Run the block without a graph; `read` are streams, differentiated arguments and parameters."""
        split = step.streams + step.differentiated
        with step.call.block(step.index):
            outputs = step.block(*read[:split])[: step.streams]
        ctx.step = step
        kept = outputs if step.anchor else ()
        unchanged = [one for _, one in step.read]
        if step.index == step.call.last:  # functions may write to their arguments in each evaluation
            unchanged += [one for one in step.call.arguments if isinstance(one, Tensor) and not one.is_inference()]
        ctx.save_for_backward(*read[step.streams : split], *kept, *unchanged)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Undo the block, and leave its inputs to the block before it."""
        step: _Step = ctx.step
        call, count = step.call, step.differentiated
        try:
            saved = ctx.saved_tensors
        except RuntimeError as error:
            error.add_note(f"petra_graph.reversible: block {step.index} reads it, and would reconstruct other inputs")
            raise
        differentiated = saved[:count]
        backward = torch._C._current_graph_task_id()  # noqa: SLF001  as torch's own checkpoints tell backwards apart
        left = call.left.pop(backward, ())  # nothing, where values from within the sequence are differentiated
        outputs = saved[count : count + step.streams] if step.anchor else left
        nothing = tuple(torch.zeros((), dtype=one.dtype, device=one.device).expand_as(one) for one in differentiated)
        with call.block(step.index), step.as_it_was() as leaves, frozen_statistics(step.block):
            inputs, found = step.block.reverse_vjp((*outputs, *differentiated), (*gradients, *nothing))
        if step.index and any(ctx.needs_input_grad[1 : 1 + step.streams]):  # else no block before it has a backward
            call.left[backward] = inputs[: step.streams]
        # Whoever is given a gradient may change it in place, as an optimizer in the backward does.
        of_leaves = [one.grad for one in leaves]
        own = iter(owned(tuple(one for one in of_leaves if one is not None), [*gradients, *found]))
        return (
            None,
            *(gradient if one.is_floating_point() else None for one, gradient in zip(inputs, found, strict=True)),
            *(None if one is None else next(own) for one in of_leaves),
        )
