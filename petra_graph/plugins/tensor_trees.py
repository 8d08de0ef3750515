"""One tensor, or several in tuples, lists and dictionaries: what a network returns, and the targets that its loss compares with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Tree = Any  # a tensor, or a structure of tensors as torch's pytrees know them


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
    if not is_several(tree):
        yield path, tree
        return
    named = isinstance(tree, Mapping)
    for key, one in tree.items() if named else enumerate(tree):
        yield from named_leaves(one, f'{path}["{key}"]' if named else f"{path}[{key}]")


def leaves(tree: Tree) -> list[Tensor]:
    """Return the tensors of a structure, in order."""
    return [one for _, one in named_leaves(tree) if one is not None]


def inputs_of(samples: Tree) -> tuple[Tensor, ...]:
    """Return the tensors that the first node reads: of a dictionary of named inputs, each in its order."""
    return tuple(samples.values()) if isinstance(samples, dict) else (samples,)


def main(tree: Tree) -> Tensor:
    """Return the tensor that stands for a structure, where one is wanted: the first."""
    return leaves(tree)[0]


def form(value: Any) -> str:
    """Return the type and shape of a tensor, as messages show them: `float32 [8, 5]`; of anything else its class."""
    import torch

    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return f"{dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def forms(tree: Tree, name: str = "") -> str:
    """Return the forms in a structure: `["labels"] int64 [8, 5], ["boxes"] float32 [8, 5, 4]`; `name` begins each place."""
    return ", ".join(f"{name}{place} {form(one)}".lstrip() for place, one in named_leaves(tree))
