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

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from threading import RLock
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from petra_graph.blocks import Reversed, Reversible, Streams, frozen_statistics
from petra_graph.blocks.couplings import owned
from petra_graph.blocks.randomness import fork_rng, random_key, under_key


@frozen
class Arguments:
    """What the functions read besides a stream: positional and keyword arguments, with any tensors inside."""

    leaves: tuple[Any, ...]
    """All values; None where a differentiated tensor goes."""
    places: tuple[int, ...]
    """Of the differentiated tensors among them."""
    structure: TreeSpec

    @staticmethod
    def of(positional: Sequence[Any], named: dict[str, Any]) -> tuple[Arguments, Streams]:
        """Return the arguments, and the tensors among them that need a gradient; all others are held as they are."""
        leaves, structure = tree_flatten((tuple(positional), named))
        places = tuple(at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad)
        differentiated = tuple(leaves[at] for at in places)
        for at in places:
            leaves[at] = None
        return Arguments(tuple(leaves), places, structure), differentiated

    def passed_to(self, function: Callable[..., Tensor], x: Tensor, differentiated: Sequence[Tensor]) -> Tensor:
        """Call a function with a stream and the arguments."""
        if not self.leaves:
            return function(x)
        leaves = list(self.leaves)
        for at, tensor in zip(self.places, differentiated, strict=True):
            leaves[at] = tensor
        positional, named = tree_unflatten(leaves, self.structure)
        return function(x, *positional, **named)


@define(eq=False)
class SequenceCall:
    """One forward through a sequence: what its backward must know to evaluate every block as the forward did."""

    arguments: Arguments
    device: torch.device
    function_dtype: torch.dtype | None
    """Functions read streams in this type; None: as they are."""
    key: int | None
    """Of the random numbers; None: functions draw from the generators as they are."""
    autocast_dtype: torch.dtype | None
    """Autocast in force; None: it is off."""
    left: dict[int, Streams] = field(factory=dict)
    """For each backward, as autograd counts them, the outputs of the next block to be undone."""
    last: int = -1
    """The last block that is undone."""
    versions: tuple[tuple[Tensor, int, str], ...] = ()
    """How often each argument had been changed in place when the forward ended: functions may write to them."""

    @contextmanager
    def block(self, index: int) -> Iterator[None]:
        """Set random numbers, autocast and arguments for an evaluation of block `index`, which no other thread's overlaps."""
        with alone, ExitStack() as stack:
            if self.key is not None:
                stack.enter_context(fork_rng(random_key(self.key, index), self.device))
            stack.enter_context(self.functions())
            if self.autocast_dtype is not None or autocast_in_force(self.device) is not None:
                # Torch before 2.10 keeps weights that were cast without a graph, for evaluations that need one.
                enabled = self.autocast_dtype is not None
                autocast = torch.autocast(self.device.type, self.autocast_dtype, enabled=enabled, cache_enabled=False)
                stack.enter_context(autocast)
            yield

    @contextmanager
    def functions(self) -> Iterator[None]:
        """Pass the arguments to all functions that `evaluated` calls."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


alone = RLock()
"""Held by the thread that evaluates a block."""
_current: ContextVar[SequenceCall | None] = ContextVar("petra_graph_reversible_call", default=None)


def evaluated(function: Callable[..., Tensor], x: Tensor, *differentiated: Tensor) -> Tensor:
    """Return function(x, arguments...) with the arguments of the call in force."""
    call = _current.get()
    if call is None:
        return function(x, *differentiated)
    read = x if call.function_dtype is None else x.to(call.function_dtype)
    return call.arguments.passed_to(function, read, differentiated)


def called_by_another() -> bool:
    """Whether a function of another sequence, or of a stage, is being evaluated, which may be evaluated again."""
    return _current.get() is not None or under_key()


def autocast_in_force(device: torch.device) -> torch.dtype | None:
    """Return the type that autocast computes in on a device; None where it is off."""
    if not torch.amp.is_autocast_available(device.type) or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def draw_key() -> int:
    """Draw a key from torch's generator of the host: `torch.manual_seed` fixes it, and no accelerator is waited for."""
    faked = torch._C._len_torch_dispatch_stack()  # noqa: SLF001  tensors may have no values there; the generator has them
    with alone, _disable_current_modes() if faked else nullcontext():  # from no key of another thread's
        return int(torch.randint(2**62, (), device="cpu"))


_Slot = tuple[dict[str, Any], str]
"""The table of a module, and a name in it."""


@frozen(eq=False)
class BlockState:
    """Where a block's modules hold their tensors in a forward."""

    values: tuple[nn.Parameter, ...]
    """The parameters that require a gradient, each once, also where modules share it."""
    slots: tuple[tuple[_Slot, int], ...]
    """Where they are, as places in `values`."""
    fixed: tuple[tuple[_Slot, Tensor], ...]
    """Frozen parameters and buffers."""
    versions: tuple[tuple[Tensor, int, str], ...]
    """How often what functions read has been changed in place, as autograd counts, with its name."""
    modes: tuple[tuple[nn.Module, bool], ...]
    """All modules, and whether they train."""

    @staticmethod
    def of(block: nn.Module) -> BlockState:
        """Walk over a block's modules."""
        places: dict[nn.Parameter, int] = {}
        slots: list[tuple[_Slot, int]] = []
        fixed: list[tuple[_Slot, Tensor]] = []
        read: list[tuple[str, Tensor]] = []
        modules = list(block.modules())
        for module in modules:
            for name, value in module._parameters.items():  # noqa: SLF001  `named_parameters` is ten times slower
                if value is None:
                    continue
                if value.requires_grad:
                    slots.append(((module._parameters, name), places.setdefault(value, len(places))))  # noqa: SLF001
                else:
                    fixed.append(((module._parameters, name), value))  # noqa: SLF001
                read.append((f"parameter {name}", value))
            # In training, torch's own normalisations use the batch's statistics, and `frozen_statistics` stops the running ones.
            normalises = module.training and type(module).__module__.startswith("torch.")
            follows = normalises and getattr(module, "track_running_stats", None) is not None
            for name, buffer in module._buffers.items():  # noqa: SLF001
                if buffer is not None:
                    fixed.append(((module._buffers, name), buffer))  # noqa: SLF001
                    if not follows:
                        read.append((f"buffer {name}", buffer))
        return BlockState(
            values=tuple(places),
            slots=tuple(slots),
            fixed=tuple(fixed),
            versions=versions_of(read),
            modes=tuple((module, module.training) for module in modules),
        )

    @property
    def change(self) -> str:
        """What has changed since the forward, so that functions return other values; "" where nothing has."""
        if any(module.training is not training for module, training in self.modes):
            return "it changed between training and evaluation mode, or one of its modules did"
        return _changed(self.versions)

    @contextmanager
    def evaluated_again(self) -> Iterator[list[nn.Parameter]]:
        """Give the modules what they held in the forward; instead of `values`, leaves over their memory, which are returned."""
        leaves = [nn.Parameter(value.detach()) for value in self.values]
        wanted: list[tuple[_Slot, Tensor]] = [(slot, leaves[place]) for slot, place in self.slots]
        wanted += [(slot, value) for slot, value in self.fixed if slot[0].get(slot[1]) is not value]
        held = [table.get(name) for (table, name), _ in wanted]
        try:
            for (table, name), value in wanted:
                table[name] = value
            yield leaves
        finally:
            for ((table, name), _), before in zip(wanted, held, strict=True):
                table[name] = before


def versions_of(
    named: Iterator[tuple[str, Tensor]] | Sequence[tuple[str, Tensor]],
) -> tuple[tuple[Tensor, int, str], ...]:
    """Return tensors with how often each has been changed in place; those of inference mode are not counted."""
    return tuple((one, one._version, name) for name, one in named if not one.is_inference())  # noqa: SLF001


def _changed(versions: Sequence[tuple[Tensor, int, str]]) -> str:
    names = (name for one, before, name in versions if one._version != before)  # noqa: SLF001
    name = next(names, "")
    return name and f"{name} was modified by an inplace operation, such as an optimizer's step"


@frozen(eq=False)
class Step:
    """A block in one forward."""

    block: Reversible
    index: int
    call: SequenceCall
    anchor: bool
    """Whether it keeps its outputs: the last block, or one from which reconstruction begins again."""
    streams: int
    """Number of streams; the differentiated arguments follow them, then the parameters."""
    differentiated: int
    state: BlockState
    """As it is in the forward."""

    @staticmethod
    def forward(
        block: Reversible, index: int, call: SequenceCall, streams: Streams, differentiated: Streams, *, anchor: bool
    ) -> Streams:
        """Run a block; the outputs have a graph that keeps no activation.

        Raises:
            RuntimeError: it writes to a buffer, which its backward would read.
        """
        with alone:
            state = BlockState.of(block)
            step = Step(block, index, call, anchor, len(streams), len(differentiated), state)
            outputs: Streams = _Node.apply(step, *streams, *differentiated, *state.values)
        if written := _changed(state.versions):
            raise RuntimeError(
                f"petra_graph.reversible: {written.partition(',')[0]} in the forward of block {index}, so that its backward would "
                "compute other values; let functions return what they remember, or set keep_graphs=len(sequence)"
            )
        return outputs

    def reverse(
        self, outputs: Streams, gradients: Streams, differentiated: Streams
    ) -> tuple[Reversed, list[Tensor | None]]:
        """Undo the block; return its inputs, and the gradients with respect to all that it read."""
        nothing = tuple(torch.zeros((), dtype=one.dtype, device=one.device).expand_as(one) for one in differentiated)
        again = self.state.evaluated_again()
        with self.call.block(self.index), again as leaves, frozen_statistics(self.block):
            reverse = self.block.reverse_vjp((*outputs, *differentiated), (*gradients, *nothing))
        found = [one.grad for one in leaves]
        # Whoever is given a gradient may change it in place, as an optimizer in the backward does.
        own = iter(owned(tuple(one for one in found if one is not None), [*gradients, *reverse.gradients]))
        return reverse, [None if one is None else next(own) for one in found]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: Step, *read: Tensor) -> Streams:
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
        step: Step = ctx.step
        # Functions may write to their arguments in each evaluation: the first backward of a call looks at them.
        if change := step.state.change or (_changed(step.call.versions) if step.index == step.call.last else ""):
            raise RuntimeError(
                f"petra_graph.reversible: block {step.index} is not as it was in its forward, so that its backward would "
                f"reconstruct other inputs: {change}"
            )
        saved = ctx.saved_tensors
        differentiated = saved[: step.differentiated]
        backward = torch._C._current_graph_task_id()  # noqa: SLF001  as torch's own checkpoints tell backwards apart
        left = step.call.left.pop(backward, None)
        outputs = saved[step.differentiated :] if step.anchor else left
        if outputs is None:
            raise RuntimeError(
                f"petra_graph.reversible: the backward has reached block {step.index} without the block after it; "
                "differentiate the outputs of the sequence, not values from within"
            )
        if step.index == step.call.last:

            def forget() -> None:  # where it stops before the first block
                step.call.left.pop(backward, None)

            torch.autograd.Variable._execution_engine.queue_callback(forget)  # noqa: SLF001  nothing public runs at its end
        reverse, of_parameters = step.reverse(outputs, gradients, differentiated)
        if step.index and any(ctx.needs_input_grad[1 : 1 + step.streams]):  # else no block before it has a backward
            step.call.left[backward] = reverse.inputs[: step.streams]
        found = [
            gradient if stream.is_floating_point() else None
            for stream, gradient in zip(reverse.inputs, reverse.gradients, strict=True)
        ]
        return None, *found, *of_parameters
