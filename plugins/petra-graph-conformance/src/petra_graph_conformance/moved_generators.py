"""Whether code moves the global generators of torch, numpy and Python."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import torch


def states() -> Mapping[str, bytes]:
    """Return the states of the global generators, by the names of their libraries."""
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()).encode(),  # noqa: NPY002
        "python": repr(random.getstate()).encode(),
    }


def moved_since(before: Mapping[str, bytes]) -> list[str]:
    return [name for name, state in states().items() if state != before[name]]
