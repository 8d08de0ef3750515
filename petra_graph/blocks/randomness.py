"""Random numbers that follow from a key, so that a recomputation draws those of the forward.

While a node runs, its device's generator is seeded with hash(seed, node, micro-batch, replica), and restored
afterwards. No state is stored between forward and backward, and neither the partition nor the runtime matters.

Decision: the key in force is a context variable, because a block author's residual function calls plain `dropout` and
must not have to pass anything along.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import blake2b

import torch
from attrs import frozen


@frozen
class _Scope:
    key: int
    generator: torch.Generator


_scope: ContextVar[_Scope | None] = ContextVar("petra_graph_random_scope", default=None)


def random_key(*parts: object) -> int:
    """Hash `parts` to a 63-bit seed, the same on every machine and in every process."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator_of(device: torch.device) -> torch.Generator | None:
    """Return the generator that random functions on `device` draw from; None on the meta device, which draws none."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return None


def fork_rng(key: int, device: torch.device) -> AbstractContextManager[None]:
    """Return a context with `device`'s generator seeded by `key`; afterwards the generator has its former state."""
    generator = generator_of(device)
    return nullcontext() if generator is None else _seeded(_Scope(key, generator))


def reseed() -> None:
    """Draw again from the start of the key in force: for a second evaluation of the same function."""
    scope = _scope.get()
    if scope is not None:
        scope.generator.manual_seed(scope.key)


def rng_scope(name: str) -> AbstractContextManager[None]:
    """Return a context with a key of its own for a function of a block, so that the order of evaluation does not matter.

    Outside a training step (a block used as a plain module) the context changes nothing.
    """
    scope = _scope.get()
    return nullcontext() if scope is None else _seeded(_Scope(random_key(scope.key, name), scope.generator))


@contextmanager
def _seeded(scope: _Scope) -> Iterator[None]:
    state = scope.generator.get_state()
    token = _scope.set(scope)
    scope.generator.manual_seed(scope.key)
    try:
        yield
    finally:
        _scope.reset(token)
        scope.generator.set_state(state)
