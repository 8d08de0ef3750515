"""The global generators of torch, numpy and Python: set to other states, so that what draws from them shows itself."""

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
def seeded(seed: int) -> Iterator[None]:
    """Run with the global generators seeded; afterwards they have their former states."""
    with fork_generators():
        seed_generators(seed)
        yield


@contextmanager
def seeded_as_torch() -> Iterator[None]:
    """Run with numpy's and Python's generators seeded as torch's was: a block's constructor draws the same from any of them in every process."""
    import numpy as np
    import torch

    with _kept():
        random.seed(torch.initial_seed())
        np.random.seed(torch.initial_seed() % 2**32)  # noqa: NPY002
        yield


@contextmanager
def fork_generators() -> Iterator[None]:
    """Run, and give the global generators their former states afterwards."""
    import torch

    of_torch = torch.get_rng_state()
    with _kept():
        try:
            yield
        finally:
            torch.set_rng_state(of_torch)


@contextmanager
def _kept() -> Iterator[None]:
    """Run, and give numpy's and Python's generators their former states afterwards."""
    import numpy as np

    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
