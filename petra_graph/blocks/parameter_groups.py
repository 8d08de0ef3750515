"""What a block states of its parameters for optimizers, by patterns of their names in attributes of the block.

    undecayed    no weight decay, beside biases and normalisations: a scale of its own, a token
    tables       a row for each token, position or class, beside `nn.Embedding` and a head's weights: positions

`petra_graph.executor.stage_update` knows the others from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

ATTRIBUTES: tuple[Literal["undecayed"], Literal["tables"]] = ("undecayed", "tables")


def stated(block: nn.Module, attribute: Literal["undecayed", "tables"]) -> Mapping[str, nn.Parameter]:
    """Return the parameters that an attribute of a block names; one that two layers share has both names."""
    patterns = getattr(block, attribute, ())
    parameters = block.named_parameters(remove_duplicate=False)
    return {name: one for name, one in parameters if any(fnmatchcase(name, pattern) for pattern in patterns)}


def stated_fault(block: nn.Module) -> str:
    """Return why an attribute of a block cannot be followed, in the words that end a sentence; "" where all can."""
    return next(filter(None, (_fault(block, attribute) for attribute in ATTRIBUTES)), "")


def _fault(block: nn.Module, attribute: str) -> str:
    patterns = getattr(block, attribute, ())
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        return f"has {attribute} = {patterns!r}, not a tuple of names of parameters"
    names = [name for name, _ in block.named_parameters(remove_duplicate=False)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            return f"has no parameter {pattern!r}, which its `{attribute}` names; it has {', '.join(names) or 'none'}"
    return ""
