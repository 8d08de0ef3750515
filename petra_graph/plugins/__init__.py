"""All that a plugin needs: `from petra_graph.plugins import AdditiveCoupling, AtLeast`.

A package registers a plugin as an entry point that names its class or function; a specification may name one in a file beside it, as
"my_file:Name". What the framework gives by position, and what is built, is the table of `petra_graph.plugins.kinds`; keyword parameters are
the options (`petra_graph.plugins.options`), and may be annotated with what they mean and with bounds:

    kernel: Annotated[int, "side of the kernel, pixels", AtLeast(1)] = 3

Code that refuses its options raises ValueError, or `SpecError` with a `Problem` whose path counts from the `options` table. `petra_graph.testing`
and `petra-graph check` check what training relies on. The guide begins with plugins/README.md in the repository.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from petra_graph.blocks import AdditiveCoupling as AdditiveCoupling
    from petra_graph.blocks import Block as Block
    from petra_graph.blocks import Buffered as Buffered
    from petra_graph.blocks import Head as Head
    from petra_graph.blocks import Reversible as Reversible
    from petra_graph.blocks import TwoFunctionCoupling as TwoFunctionCoupling
    from petra_graph.blocks.block_kinds import ParameterGroups as ParameterGroups
    from petra_graph.errors import Problem as Problem
    from petra_graph.errors import SpecError as SpecError
    from petra_graph.plugins.callback import Callback as Callback
    from petra_graph.plugins.callback import Companion as Companion
    from petra_graph.plugins.callback import EpochEnded as EpochEnded
    from petra_graph.plugins.callback import Started as Started
    from petra_graph.plugins.data_set import DataFacts as DataFacts
    from petra_graph.plugins.data_set import DataSet as DataSet
    from petra_graph.plugins.data_set import Split as Split
    from petra_graph.plugins.data_set import TextCodec as TextCodec
    from petra_graph.plugins.generators import fork_generators as fork_generators
    from petra_graph.plugins.generators import seed_generators as seed_generators
    from petra_graph.plugins.generators import seeded as seeded
    from petra_graph.plugins.local_plugins import named_code as named_code
    from petra_graph.plugins.loss_and_metric import Loss as Loss
    from petra_graph.plugins.loss_and_metric import Metric as Metric
    from petra_graph.plugins.loss_and_metric import Scale as Scale
    from petra_graph.plugins.loss_and_metric import correct as correct
    from petra_graph.plugins.loss_and_metric import scale_of as scale_of
    from petra_graph.plugins.options import Code as Code
    from petra_graph.plugins.stage_facts import Horizon as Horizon
    from petra_graph.plugins.stage_facts import StageFacts as StageFacts
    from petra_graph.spec.in_code import code_name as code_name
    from petra_graph.spec.keys import AtLeast as AtLeast
    from petra_graph.spec.keys import AtMost as AtMost
    from petra_graph.spec.keys import Bound as Bound
    from petra_graph.spec.keys import Each as Each
    from petra_graph.spec.keys import GreaterThan as GreaterThan
    from petra_graph.spec.keys import Length as Length
    from petra_graph.spec.keys import LessThan as LessThan
    from petra_graph.spec.keys import key as key
    from petra_graph.spec.keys import required as required
    from petra_graph.spec.model import Kind as Kind
    from petra_graph.spec.model import NodeSpec as NodeSpec

_HOMES = (
    "petra_graph.errors",
    "petra_graph.plugins.callback",
    "petra_graph.plugins.data_set",
    "petra_graph.plugins.generators",
    "petra_graph.plugins.local_plugins",
    "petra_graph.plugins.loss_and_metric",
    "petra_graph.plugins.options",
    "petra_graph.plugins.stage_facts",
    "petra_graph.spec.in_code",
    "petra_graph.spec.keys",
    "petra_graph.spec.model",
    "petra_graph.blocks",
    "petra_graph.blocks.block_kinds",
)
"""Each is imported when a name is asked for that is in none before it; the last ones import torch."""


def __getattr__(name: str) -> Any:
    for home in _HOMES if not name.startswith("_") else ():
        if (found := vars(import_module(home)).get(name)) is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
