"""The global generators of torch, numpy and Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


def seed_generators(key: int) -> None:
    """Seed the global generators with a key of at most 64 bits, of which numpy takes the last 32."""
    import numpy as np
    import torch

    random.seed(key)
    np.random.seed(key % 2**32)  # noqa: NPY002  the global one, which plugins draw from
    torch.default_generator.manual_seed(key)


@contextmanager
def fork_generators() -> Iterator[None]:
    """Run, and give the global generators their former states afterwards."""
    import numpy as np
    import torch

    of_torch, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run with the global generators seeded; afterwards they have their former states."""
    with fork_generators():
        seed_generators(seed)
        yield
