"""All kinds of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from attrs import evolve, field, frozen

from petra_graph.errors import Problem, SpecError
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.callback import Callback, CallbackDeclaration, LoggerDeclaration, declared_callback
from petra_graph.plugins.contract import Declaration, Form, Plugin, PluginKind, called, load
from petra_graph.plugins.data_set import DataFacts, DataSetDeclaration, declared_data, used_data
from petra_graph.plugins.loss_and_metric import (
    LossDeclaration,
    MetricDeclaration,
    UsedMetric,
    declared_metric,
    used_loss,
)
from petra_graph.plugins.optimizer import OptimizerDeclaration, used_optimizer
from petra_graph.spec.keys import OneOf
from petra_graph.spec.model import Kind, NodeSpec


@frozen(kw_only=True)
class BlockDeclaration(Declaration):
    """A block; `build` names a `petra_graph.blocks.Block` subclass, built as `cls(inputs, options)`.

    Attributes:
        kind: the most that the block can be: a reversible block may also be a buffered node.
        streams: the number of tensors that the block reads; None: any number.
    """

    kind: Literal["reversible", "buffered", "head"] = field(validator=OneOf(*get_args(Kind)))
    streams: int | None = None

    @property
    def abilities(self) -> tuple[str, ...]:
        streams = "any number of" if self.streams is None else str(self.streams)
        return (self.kind, f"reads {streams} stream{'s' * (self.streams != 1)}")


def _declared(block: Any, _: str) -> Mapping[str, Any]:
    return {"kind": block.kind, "streams": getattr(block, "streams", None)}


BLOCK = PluginKind(
    noun="block",
    group="petra_graph.blocks",
    declaration=BlockDeclaration,
    form=Form(
        fits=lambda value: isinstance(value, type) and hasattr(value, "kind"),
        otherwise='is not a subclass of a class of petra_graph.blocks; any other torch.nn.Module is an option of the block "module"',
        declared=_declared,
    ),
)


@frozen(kw_only=True)
class ArchitectureDeclaration(Declaration):
    """A network by name; `build` names a torch-free function (options, DataFacts) -> tuple of NodeSpec.

    It may raise `SpecError` with problems, whose paths count from its own options.

    Attributes:
        several_inputs: whether its first node reads samples of several inputs; if not, it is not called with their facts.
    """

    several_inputs: bool = False


def expand(plugin: Plugin, options: Any, facts: DataFacts) -> tuple[NodeSpec, ...]:
    """Return the nodes of an architecture with these options, for a data set's samples; its code does not import torch.

    Raises:
        SpecError: its options or the data do not make a network; paths count from the `options` table.
        PluginError: the architecture cannot be loaded, failed, or returned something other than nodes.
    """
    build = load(plugin)
    if facts.several_inputs and not cast(ArchitectureDeclaration, plugin.declaration).several_inputs:
        names = ", ".join(facts.inputs)
        message = f"{plugin} reads one tensor a sample, and a sample of the data has several inputs: {names}"
        hint = f"write the network as [[graph.node]] tables, of which the first has a block with forward(self, {names})"
        raise SpecError(Problem(message=message, hint=hint))
    with author_code(f"{plugin.owned} cannot be written out as nodes"):
        made = tuple(build(options, facts))
    if not made or not all(isinstance(node, NodeSpec) for node in made):
        raise plugin.broken("its build returns something else than a tuple of NodeSpec")
    return made


ARCHITECTURE = PluginKind(
    noun="architecture",
    group="petra_graph.architectures",
    table="architecture",
    declaration=ArchitectureDeclaration,
    form=called("options, facts", "tuple of NodeSpec"),
)


DATA_SET = PluginKind(
    noun="data set",
    group="petra_graph.datasets",
    table="data",
    declaration=DataSetDeclaration,
    form=Form(
        fits=lambda value: isinstance(value, type) and isinstance(getattr(value, "facts", None), DataFacts),
        otherwise="is not a class with `facts`, a DataFacts of its samples",
        declared=declared_data,
    ),
    used=used_data,
)


CALLBACK = PluginKind(
    noun="callback",
    group="petra_graph.callbacks",
    table="callback",
    several=True,
    declaration=CallbackDeclaration,
    form=Form(
        fits=lambda value: isinstance(value, type) and issubclass(value, Callback) and value is not Callback,
        otherwise="is not a subclass of petra_graph.plugins.Callback, which is built as cls(options)",
        declared=declared_callback,
    ),
)


LOGGER = PluginKind(
    noun="logger",
    group="petra_graph.loggers",
    table="logger",
    several=True,
    declaration=LoggerDeclaration,
    form=called("options, run", "Logger"),
)


LOSS = PluginKind(
    noun="loss",
    plural="losses",
    group="petra_graph.losses",
    table="loss",
    declaration=LossDeclaration,
    form=called("options", "Loss"),
    used=used_loss,
)


METRIC = PluginKind(
    noun="metric",
    group="petra_graph.metrics",
    table="metric",
    several=True,
    declaration=MetricDeclaration,
    form=evolve(called("options", "Metric"), declared=declared_metric),
    used=lambda plugin, _, built: UsedMetric(plugin, built),
)


@frozen(kw_only=True)
class LrScheduleDeclaration(Declaration):
    """A learning-rate schedule; `build` names a torch-free function (options, Horizon) -> factor(u).

    `factor(u)` multiplies the base learning rate at the stage's update u = 0, 1, ...; warm-up is applied outside. A function
    (options, Horizon, stage) is given the `StageFacts` of a stage, and builds the factor of that stage alone.
    """


LR_SCHEDULE = PluginKind(
    noun="learning-rate schedule",
    group="petra_graph.lr_schedules",
    table="lr_schedule",
    declaration=LrScheduleDeclaration,
    form=called("options, horizon", "factor(u)", stage=True),
    used=lambda _, __, factor: lambda u: float(factor(u)),
)


OPTIMIZER = PluginKind(
    noun="optimizer",
    group="petra_graph.optimizers",
    table="optimizer",
    declaration=OptimizerDeclaration,
    form=called("groups, options", "torch.optim.Optimizer", stage=True),
    options_last=True,
    used=used_optimizer,
)


KINDS = (BLOCK, ARCHITECTURE, OPTIMIZER, LR_SCHEDULE, LOSS, METRIC, DATA_SET, LOGGER, CALLBACK)
"""In the order of lists and of the guide."""
