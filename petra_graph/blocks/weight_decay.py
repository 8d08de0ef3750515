"""The parameters that a block says to be without weight decay, by patterns of their names.

Biases and normalisation parameters are never decayed (`petra_graph.executor.stage_update`). A block says what cannot be known from
outside: a scale of its own, a token, a table of positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def stated_undecayed(block: nn.Module) -> Mapping[str, nn.Parameter]:
    """Return the parameters that `block.undecayed` names; one that two layers share has both names."""
    patterns = getattr(block, "undecayed", ())
    parameters = block.named_parameters(remove_duplicate=False)
    return {name: one for name, one in parameters if any(fnmatchcase(name, pattern) for pattern in patterns)}


def undecayed_fault(block: nn.Module) -> str:
    """Return why `block.undecayed` cannot be followed, in the words that end a sentence; "" where it can."""
    patterns = getattr(block, "undecayed", ())
    if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
        return f"has undecayed = {patterns!r}, not a tuple of names of parameters"
    names = [name for name, _ in block.named_parameters(remove_duplicate=False)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            return f"has no parameter {pattern!r}, which its `undecayed` names; it has {', '.join(names) or 'none'}"
    return ""
