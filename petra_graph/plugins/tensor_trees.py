"""One tensor, or several in tuples, lists and dictionaries: what a network returns, and the targets that its loss compares with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Tree = Any
"""A tensor, or a structure of tensors as torch's pytrees know them."""


def is_several(tree: Tree) -> bool:
    return isinstance(tree, Mapping | tuple | list)


def mapped(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """Return the same structure, with what the function makes of each tensor."""
    if not is_several(tree):
        return function(tree)
    import torch
    from torch.utils._pytree import tree_map_only  # the structures that torch.export knows, too

    return tree_map_only(torch.Tensor, function, tree)


def named_leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is in a structure, each with its place: `["boxes"][0]`; "" for one tensor."""
    if isinstance(tree, Mapping):
        for key, one in tree.items():
            yield from named_leaves(one, f'{path}["{key}"]')
    elif is_several(tree):
        for at, one in enumerate(tree):
            yield from named_leaves(one, f"{path}[{at}]")
    else:
        yield path, tree


def leaves(tree: Tree) -> list[Tensor]:
    """Return the tensors of a structure, in order."""
    return [one for _, one in named_leaves(tree) if one is not None]


def inputs_of(samples: Tree) -> tuple[Tensor, ...]:
    """Return the tensors that the first node reads: of a dictionary of named inputs, each in its order."""
    return tuple(samples.values()) if isinstance(samples, dict) else (samples,)


def main(tree: Tree) -> Tensor:
    """Return the tensor that stands for a structure, where one is wanted: the first."""
    found: Tensor = leaves(tree)[0] if is_several(tree) else tree
    return found


def shapes(tree: Tree) -> str:
    """Return the shapes of a structure, as messages show them: `["labels"] [8, 5], ["boxes"] [8, 5, 4]`."""
    return ", ".join(f"{path} {list(getattr(one, 'shape', ()))}".lstrip() for path, one in named_leaves(tree))
