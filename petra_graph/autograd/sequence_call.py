"""One forward through a sequence: what its backward must know to evaluate every block as the forward did.

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
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from petra_graph.autograd.block_state import versions_of
from petra_graph.blocks import Streams
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
        """Return the arguments, and the tensors among them that need a gradient.

        All others are held as they are: integers, and masks and positions in floating point, have no gradient.
        """
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
    """The settings of one forward, and the streams that its backward has reached."""

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
    versions: tuple[tuple[Tensor, int], ...] = ()
    """How often each argument had been changed in place when the forward ended."""

    def note_versions(self) -> None:
        """Remember the arguments as they are at the end of the forward: functions may write to them."""
        self.versions = versions_of(leaf for leaf in self.arguments.leaves if isinstance(leaf, Tensor))

    @property
    def change(self) -> str:
        """What has changed since the forward, so that functions return other values; "" where nothing has."""
        changed = any(argument._version != before for argument, before in self.versions)  # noqa: SLF001
        return "an argument of its functions was modified by an inplace operation" if changed else ""

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
