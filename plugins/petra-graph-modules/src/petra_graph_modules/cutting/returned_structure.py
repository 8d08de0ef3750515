"""What a network returns: its tensors, and the tuples, lists and dictionaries that they are in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import (
    tree_flatten,
    tree_map_only,
    tree_unflatten,
)  # the structures that torch.export knows, too


class NoTensors(ValueError):
    """What was returned has none, or something else; the message says what it is."""


def taken_apart(returned: Any) -> tuple[tuple[Tensor, ...], Any]:
    """Return the tensors, and their structure with the number of each in its place; what is None stays.

    Raises:
        NoTensors: there is no tensor, or something else.
    """
    found, spec = tree_flatten(returned)
    tensors = tuple(one for one in found if isinstance(one, Tensor))
    others = dict.fromkeys(type(one).__name__ for one in found if not isinstance(one, Tensor | None))
    if others or not tensors:
        inside = f" with {', '.join(others)} in it" if isinstance(returned, Mapping | tuple | list) and others else ""
        raise NoTensors(f"{type(returned).__name__}{inside}")
    numbers = iter(range(len(tensors)))
    return tensors, tree_unflatten([None if one is None else next(numbers) for one in found], spec)


def put_together(structure: Any, tensors: tuple[Tensor, ...]) -> Any:
    """Return a structure with tensors in the places of their numbers."""
    return tensors[0] if structure == 0 else tree_map_only(int, tensors.__getitem__, structure)
