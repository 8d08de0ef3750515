"""One block in the graph of autograd: its forward keeps nothing, its backward undoes it.

    forward     streams ─ block 0 ─ block 1 ─ ... ─ block L-1 (keeps its outputs)
    backward    streams of block i's output: left by block i+1, which has reconstructed them

Decision: each block is a node of its own, which has the block's parameters as inputs. So autograd itself accumulates
every gradient as soon as it is known, one block after the other: hooks fire once, data-parallel buckets fill during the
backward, `torch.autograd.grad` works. A block gets the outputs that it undoes from the node after it, which autograd
always runs before: its only way to a gradient.

Decision: while a block is undone, its modules hold leaves over the memory of the parameters that its forward had. Their gradients are
returned by the node, and a forward under `torch.func.functional_call` needs nothing of its own.

Decision: random numbers follow from one key that is drawn for each forward, as in a stage (`petra_graph.blocks.randomness`), and
no generator's state is stored: the memory does not grow with depth, and a coupling that evaluates its functions in the
opposite order still gives each its own masks.

Decision: blocks that train are evaluated one at a time in a process. Torch has one generator of the host, and one switch of
running statistics a module: threads that seed the one and turn the other would train on each other's masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from threading import RLock
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_unflatten

from petra_graph.blocks import Reversible, Streams, frozen_statistics
from petra_graph.blocks.randomness import fork_rng, random_key, within

Versions = tuple[tuple[Tensor, int, str], ...]
"""Tensors with how often each has been changed in place, as autograd counts, and its name."""
_ALONE = RLock()
"""Held by the thread that evaluates a block."""
_NOTHING = nullcontext()


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
    left: dict[int, Streams] = field(factory=dict)
    """For each backward, as autograd counts them, the outputs of the next block to be undone."""
    versions: Versions = ()
    """Of the arguments when the forward ended: functions may write to them."""

    @contextmanager
    def block(self, index: int) -> Iterator[None]:
        """Set random numbers, autocast and arguments for an evaluation of block `index`, which no other thread's overlaps."""
        numbers = _NOTHING if self.key is None else fork_rng(random_key(self.key, index), self.device)
        autocast, enabled = _NOTHING, self.autocast_dtype is not None
        if enabled or autocast_in_force(self.device) is not None:
            # Torch before 2.10 keeps weights that were cast without a graph, for evaluations that need one.
            autocast = torch.autocast(self.device.type, self.autocast_dtype, enabled=enabled, cache_enabled=False)  # type: ignore[assignment]
        with _ALONE, numbers, within(current, self), autocast:
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
    faked = torch._C._len_torch_dispatch_stack()  # noqa: SLF001  tensors may have no values there; the generator has them
    with _ALONE, _disable_current_modes() if faked else _NOTHING:  # from no key of another thread's
        return int(torch.randint(2**62, (), device="cpu"))


def versions_of(named: Iterable[tuple[str, Tensor]]) -> Versions:
    """Return the versions of tensors; those of inference mode are not counted."""
    return tuple((one, one._version, name) for name, one in named if not one.is_inference())  # noqa: SLF001


def _written(versions: Versions) -> str:
    """Return the name of a tensor that has been written to since; "" where none has."""
    return next((name for one, before, name in versions if one._version != before), "")  # noqa: SLF001


@define(eq=False)
class _Step:
    """A block in one forward, and what its modules hold there."""

    block: Reversible
    index: int
    call: SequenceCall
    anchor: bool
    """Whether it keeps its outputs: the last block, or one from which reconstruction begins again."""
    streams: int
    """Number of streams; the differentiated arguments follow them, then the parameters."""
    differentiated: int
    held: list[tuple[dict[str, Any], str, Tensor]] = field(factory=list, init=False)
    """All parameters and buffers: a module's table, a name there, the tensor."""
    trained: Streams = field(init=False)
    """The parameters that require a gradient, each once, also where modules share it."""
    versions: Versions = field(init=False)
    """Of what functions read."""
    modes: list[tuple[nn.Module, bool]] = field(init=False)
    """All modules, and whether they train."""

    def __attrs_post_init__(self) -> None:
        trained: dict[int, Tensor] = {}
        read: list[tuple[str, Tensor]] = []
        self.modes = [(module, module.training) for module in self.block.modules()]
        for module, training in self.modes:
            # In training, torch's own normalisations use the batch's statistics, and `frozen_statistics` stops the running ones.
            normalises = training and type(module).__module__.startswith("torch.")
            follows = normalises and getattr(module, "track_running_stats", None) is not None
            # The tables themselves, since `named_parameters` is ten times slower.
            for table, what in ((module._parameters, "parameter"), (module._buffers, "buffer")):  # noqa: SLF001
                own = [(name, value) for name, value in table.items() if value is not None]
                self.held += [(table, name, value) for name, value in own]
                if what == "parameter":
                    trained |= {id(value): value for _, value in own if value.requires_grad}
                if what == "parameter" or not follows:
                    read += [(f"{what} {name}", value) for name, value in own]
        self.trained, self.versions = tuple(trained.values()), versions_of(read)

    def expect_unchanged(self, arguments: Versions) -> None:
        """Refuse to undo a block whose functions may return other values than in the forward."""
        change = ""
        if any(module.training is not training for module, training in self.modes):
            change = "it changed between training and evaluation mode, or one of its modules did"
        elif written := _written(self.versions) or _written(arguments):
            change = f"{written} was modified by an inplace operation, such as an optimizer's step"
        if change:
            raise RuntimeError(
                f"petra_graph.reversible: block {self.index} is not as it was in its forward, so that its backward would "
                f"reconstruct other inputs: {change}"
            )

    @contextmanager
    def evaluated_again(self) -> Iterator[list[nn.Parameter]]:
        """Give the modules what they held in the forward; instead of `trained`, leaves over their memory, which are returned."""
        leaves = [nn.Parameter(value.detach()) for value in self.trained]
        leaf_of = dict(zip(map(id, self.trained), leaves, strict=True))
        before = []
        try:
            for table, name, tensor in self.held:
                value = leaf_of.get(id(tensor), tensor)
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
    """Run a block; the outputs have a graph that keeps no activation; RuntimeError: it writes to a buffer, which its backward would read."""
    with _ALONE:
        step = _Step(block, index, call, anchor, len(streams), len(differentiated))
        outputs: Streams = _Node.apply(step, *streams, *differentiated, *step.trained)
    if written := _written(step.versions):
        raise RuntimeError(
            f"petra_graph.reversible: {written} was modified in the forward of block {index}, so that its backward would "
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
        ctx.save_for_backward(*read[step.streams : split], *(outputs if step.anchor else ()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Undo the block, and leave its inputs to the block before it."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "petra_graph.reversible: a second derivative was asked for (create_graph=True), and a backward that "
                "reconstructs has none; set keep_graphs=len(sequence) to differentiate it with plain autograd"
            )
        step: _Step = ctx.step
        call, is_last = step.call, step.index == step.call.last
        # Functions may write to their arguments in each evaluation: the first backward of a call looks at them.
        step.expect_unchanged(call.versions if is_last else ())
        saved = ctx.saved_tensors
        differentiated = saved[: step.differentiated]
        backward = torch._C._current_graph_task_id()  # noqa: SLF001  as torch's own checkpoints tell backwards apart
        left = call.left.pop(backward, None)
        outputs = saved[step.differentiated :] if step.anchor else left
        if outputs is None:
            raise RuntimeError(
                f"petra_graph.reversible: the backward has reached block {step.index} without the block after it; "
                "differentiate the outputs of the sequence, not values from within"
            )
        if is_last:

            def forget() -> None:  # where it stops before the first block
                call.left.pop(backward, None)

            torch.autograd.Variable._execution_engine.queue_callback(forget)  # noqa: SLF001  nothing public runs at its end
        nothing = tuple(torch.zeros((), dtype=one.dtype, device=one.device).expand_as(one) for one in differentiated)
        with call.block(step.index), step.evaluated_again() as leaves, frozen_statistics(step.block):
            inputs, found = step.block.reverse_vjp((*outputs, *differentiated), (*gradients, *nothing))
        if step.index and any(ctx.needs_input_grad[1 : 1 + step.streams]):  # else no block before it has a backward
            call.left[backward] = inputs[: step.streams]
        # Whoever is given a gradient may change it in place, as an optimizer in the backward does.
        taken = {one.untyped_storage()._cdata for one in (*gradients, *found)}  # noqa: SLF001  addresses are all equal on the meta device
        own: list[Tensor | None] = []
        for gradient in (one.grad for one in leaves):
            storage = None if gradient is None else gradient.untyped_storage()._cdata  # noqa: SLF001
            own.append(gradient.clone() if gradient is not None and storage in taken else gradient)
            taken.add(storage)
        of_streams = zip(inputs, found, strict=True)
        return None, *(gradient if one.is_floating_point() else None for one, gradient in of_streams), *own
