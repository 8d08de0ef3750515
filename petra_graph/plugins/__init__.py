"""All that a plugin needs: `from petra_graph.plugins import AdditiveCoupling, AtLeast`. The guide is plugins/README.md in the repository.

Code that refuses its options raises ValueError, or `SpecError(message, hint, path)`, whose path counts from the `options` table.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from petra_graph.blocks import AdditiveCoupling, Block, Buffered, Head, Reversible, TwoFunctionCoupling
    from petra_graph.blocks.block_kinds import ParameterGroups
    from petra_graph.errors import Problem, SpecError
    from petra_graph.plugins.author_code import named_code
    from petra_graph.plugins.callback import Callback, Companion, EpochEnded, Started
    from petra_graph.plugins.contract import Code
    from petra_graph.plugins.data_set import DataFacts
    from petra_graph.plugins.generators import fork_generators, seed_generators, seeded
    from petra_graph.plugins.loss_and_metric import Scale, correct, scale_of
    from petra_graph.plugins.stage_facts import Horizon, StageFacts
    from petra_graph.spec.in_code import code_name
    from petra_graph.spec.model import Kind, NodeSpec
    from petra_graph.spec.strict_values import AtLeast, AtMost, GreaterThan, Length, LessThan

# fmt: off
__all__ = [
    "AdditiveCoupling", "AtLeast", "AtMost", "Block", "Buffered", "Callback", "Code", "Companion", "DataFacts",
    "EpochEnded", "GreaterThan", "Head", "Horizon", "Kind", "Length", "LessThan", "NodeSpec", "ParameterGroups", "Problem",
    "Reversible", "Scale", "SpecError", "StageFacts", "Started", "TwoFunctionCoupling", "code_name", "correct",
    "fork_generators", "named_code", "scale_of", "seed_generators", "seeded",
]
_HOMES = (
    "errors", "plugins.author_code", "plugins.callback", "plugins.data_set", "plugins.generators", "plugins.loss_and_metric", "plugins.contract",
    "plugins.stage_facts", "spec.in_code", "spec.model", "spec.strict_values", "blocks", "blocks.block_kinds",
)
# fmt: on
"""Each is imported when a name is asked for that is in none before it; the last ones import torch."""


def __getattr__(name: str) -> Any:
    for home in _HOMES if name in __all__ else ():
        if (found := vars(import_module(f"petra_graph.{home}")).get(name)) is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
