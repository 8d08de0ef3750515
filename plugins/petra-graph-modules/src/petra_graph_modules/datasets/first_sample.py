"""The first sample of a torch Dataset, from which its facts follow; a Dataset that would not give the same samples again is refused.

Decision: generators are searched for in the attributes of a Dataset, not traced. Each sample is drawn from the global generators, which
are seeded for it; one that the Dataset holds stands where the samples before have left it.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from petra_graph.errors import Problem, SpecError
from petra_graph.plugins import seeded
from petra_graph_modules.datasets.sample_tensors import PAIR_HINT, name_tensors, read_sample
from petra_graph_modules.datasets.splits import is_iterable

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_DEPTH, _ITEMS = 5, 64
"""How deep a Dataset is searched for generators (Subset, transform, list), and how long the lists in it are at most."""


def read_first_sample(option: str, dataset: Any) -> tuple[Any, Any]:
    """Return (x, y) of the first sample.

    Raises:
        SpecError: the Dataset has no sample, or its first one is no pair, or is drawn from a generator that the Dataset holds, or a stream
            begins with another one when it is iterated again; the problem's path is `option`.
    """
    held = list(_find_generators(dataset, "", _DEPTH, set()))
    streams = is_iterable(dataset)
    earlier = _take_first(option, dataset) if streams else None  # a stream may seed its generators whenever it begins
    before = [_read_state(generator) for _, generator in held]
    sample = _take_first(option, dataset)
    moved = [path for (path, one), state in zip(held, before, strict=True) if _read_state(one) != state]
    if moved:
        message = f"the Dataset draws from a generator of its own, `{moved[0]}`: a sample would depend on those read before it"
        hint = "draw from random, np.random or torch without a generator: they are seeded for each sample, by seed, epoch and index"
        raise SpecError(Problem(message=message, hint=hint, path=(option,)))
    try:
        x, y = read_sample(sample)
        same = not streams or _are_equal((x, y), read_sample(earlier))
    except ValueError as error:
        raise SpecError(Problem(message=f"sample 0: {error}", hint=PAIR_HINT, path=(option,))) from None
    if not same:
        message = "the stream has another first sample when it is iterated again, with the same state of all generators"
        hint = "let __iter__ begin anew, with a generator that it makes itself or the global ones: a resumed run reads the stream again"
        raise SpecError(Problem(message=message, hint=hint, path=(option,)))
    return x, y


def _take_first(option: str, dataset: Any) -> Any:
    """Return what the Dataset gives first, with the global generators seeded with 0."""
    try:
        with seeded(0):
            return next(iter(dataset)) if is_iterable(dataset) else dataset[0]
    except StopIteration:
        hint = "iterate it alone to see why; a stream that was read once must begin anew when it is iterated again"
        raise SpecError(Problem(message="the stream has no samples", hint=hint, path=(option,))) from None
    except Exception as error:
        raised = RuntimeError(f"sample 0 of `{option}`: {type(error).__name__}: {error}")
        raise raised.with_traceback(error.__traceback__) from error  # the line stays the author's


def _are_equal(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    left, right = (name_tensors("x", x) | name_tensors("y", y) for x, y in (one, other))
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def _find_generators(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the generators within a Dataset, in attributes of attributes and in short lists, each with its path."""
    if isinstance(value, _GENERATORS):
        yield path, value
    elif depth and id(value) not in seen and not isinstance(value, type | ModuleType | Tensor | np.ndarray):
        seen.add(id(value))
        inside = value if isinstance(value, dict | list | tuple) else getattr(value, "__dict__", {})
        if len(inside) <= _ITEMS:
            for key, item in inside.items() if isinstance(inside, dict) else enumerate(inside):
                yield from _find_generators(item, f"{path}.{key}".removeprefix("."), depth - 1, seen)


def _read_state(generator: Any) -> bytes:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    return pickle.dumps(generator)
