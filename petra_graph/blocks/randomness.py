"""Random numbers that follow from a key, so that a recomputation draws those of the forward.

While a node runs, its device's generator and the CPU's are seeded with hash(seed, node, micro-batch, replica), and restored
afterwards: a block on a GPU may draw on the CPU, as drop-path and code that samples an index do. No state is stored between
forward and backward, and neither the partition nor the runtime matters.

Decision: the key in force is a context variable, because a block author's residual function calls plain `dropout` and
must not have to pass anything along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import blake2b
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
_LAYERS = "activation batchnorm container conv flatten instancenorm linear module normalization pooling sparse"
_QUIET = {f"torch.nn.modules.{kind}" for kind in _LAYERS.split()}
"""Where torch defines modules that draw nothing, but for these:"""
_DRAWING = (nn.RReLU, nn.MultiheadAttention, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def random_key(*parts: object) -> int:
    """Hash `parts` to a 63-bit seed, the same on every machine and in every process."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Keyed:
    """A context with generators that start from a key; afterwards they have their former states.

    It may be entered again and again, with other keys, and not within itself.
    """

    micro_batch: int | None = None
    """The training micro-batch that is under way, counted from the run's start."""

    def __init__(self, key: int, generators: Sequence[torch.Generator]) -> None:
        self.key, self.generators = key, generators

    def seed(self) -> None:
        """Start all generators from the key."""
        for generator in self.generators:
            generator.manual_seed(self.key)

    def __enter__(self) -> None:
        self._token = _innermost.set(self)
        self._states = [] if unseeded.get() else list(map(torch.Generator.get_state, self.generators))
        if self._states:
            self.seed()

    def __exit__(self, *_: object) -> None:
        _innermost.reset(self._token)
        drew = _drew.get()
        if drew is not None:  # something was drawn if a generator has left where the key puts it
            ended = list(map(torch.Generator.get_state, self.generators))
            self.seed()
            if not all(map(torch.equal, ended, map(torch.Generator.get_state, self.generators))):
                drew.append(self.key)
        if self._states:
            for generator, state in zip(self.generators, self._states, strict=True):
                generator.set_state(state)
        del self._states


_innermost: ContextVar[Keyed | None] = ContextVar("petra_graph_random_key", default=None)
_drew: ContextVar[list[int] | None] = ContextVar("petra_graph_random_keys_drawn", default=None)
unseeded: ContextVar[bool] = ContextVar("petra_graph_unseeded", default=False)
"""Whether all generators are left alone: nothing draws, and a graph that is captured refuses another seed."""


@contextmanager
def within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a context variable a value inside the context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def draws_watched() -> Iterator[list[int]]:
    """List the keys under which random numbers are drawn within the context."""
    drew: list[int] = []
    with within(_drew, drew):
        yield drew


def generators_of(device: torch.device) -> tuple[torch.Generator, ...]:
    """Return the generators that code of a node on `device` may draw from; none on the meta device, which draws nothing."""
    kind = device.type
    if kind == "meta":
        return ()
    if kind != "cuda":
        return (torch.default_generator,)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.default_generator, torch.cuda.default_generators[index]


def fork_rng(key: int, device: torch.device) -> AbstractContextManager[None]:
    """Return a context with the generators of `device` seeded by `key`; afterwards they have their former states."""
    generators = generators_of(device)
    return Keyed(key, generators) if generators else nullcontext()


def may_draw(module: nn.Module | None) -> bool:
    """Whether a module, or code that is not known (None), may draw random numbers or ask for `micro_batch()`; ask when its hooks are in place."""
    for part in [] if module is None else module.modules():
        kind, own = type(part), vars(part)
        changed = "forward" in own or own["_forward_hooks"] or own["_forward_pre_hooks"]
        known = kind.__module__ in _QUIET and kind not in _DRAWING
        # Of a class that says nothing in its own body, but inherits, the code may draw.
        if changed or (part.draws if "draws" in vars(kind) else not known) is not False:
            return True
    return module is None


def under_key() -> bool:
    """Whether a key is in force."""
    return _innermost.get() is not None


def current_states() -> Sequence[Tensor]:
    """Return the states of the generators under the key in force, which move where random numbers are drawn; without a key, nothing."""
    keyed = _innermost.get()
    return [] if keyed is None else [generator.get_state() for generator in keyed.generators]


def reseed() -> None:
    """Draw again from the start of the key in force: for a second evaluation of the same function."""
    keyed = _innermost.get()
    if keyed is not None and not unseeded.get():
        keyed.seed()


def rng_scope(name: str) -> AbstractContextManager[None]:
    """Return a context with a key of its own for a function of a block, so that the order of evaluation does not matter.

    Outside a training step (a block used as a plain module) the context changes nothing.
    """
    outer = _innermost.get()
    if outer is None:
        return nullcontext()
    keyed = Keyed(random_key(outer.key, name), outer.generators)
    keyed.micro_batch = outer.micro_batch
    return keyed


def micro_batch() -> int | None:
    """Return the number of the training micro-batch that is under way, from 0 at the run's start; None in an evaluation and outside of runs.

    It is the same in a micro-batch's forward and backward, and after a resumption: so a block may make a value of it that changes over
    time, such as the rate of dropped layers or a temperature. RuntimeError: the code is being compiled, which would keep the first number.
    """
    if torch.compiler.is_compiling():
        raise RuntimeError("micro_batch() changes, and compiled code would keep its first value: leave it as written")
    keyed = _innermost.get()
    if keyed is None:
        return None
    if (drew := _drew.get()) is not None:  # as random numbers: what is recorded once would keep it, too
        drew.append(keyed.key)
    return keyed.micro_batch
