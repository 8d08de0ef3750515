"""One call for each kind of plugin: all its promises, or an AssertionError that lists the broken ones.

Each function takes a plugin as an entry point names it (its code, the class of its options, or its declaration), its `options` table
as a specification would give it (None: no keys), `leave_out`, the names of promises that the plugin does not make, and the settings
of its trial. It returns the outcome of every promise, and raises

    AssertionError  promises are broken: which, by how much, and what to do; its `report` has them as values
    SpecError       the options class refuses the options
    ValueError      a name in `leave_out` is not that of a promise
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Unpack

from petra_graph.kinds.callback import CallbackTrial
from petra_graph.kinds.data_set import DataFacts, DataSetTrial
from petra_graph.kinds.examined_promises import conclude, examine
from petra_graph.kinds.logger import LoggerTrial
from petra_graph.kinds.loss import LossTrial
from petra_graph.kinds.lr_schedule import LrScheduleTrial
from petra_graph.kinds.metric import MetricTrial
from petra_graph.kinds.optimizer import OptimizerTrial
from petra_graph.kinds.outputs_and_targets import DrawTargets, classes_of
from petra_graph.kinds.plugin_trial import Given, Options
from petra_graph.kinds.promise_report import Report
from petra_graph.promises.architecture_promises import IMAGES, ArchitectureTrial
from petra_graph.promises.block_trial import Settings, Trial

LeaveOut = Collection[str]


def check_block(
    block: Given,
    inputs: Sequence[Sequence[int]],
    options: Options = None,
    *,
    leave_out: LeaveOut = (),
    **settings: Unpack[Settings],
) -> Report:
    """Check a block.

    Args:
        block: as in `Trial.of`, with `inputs`, `options` and the other settings.
        inputs: shapes of the streams that it reads, without the batch dimension.
        options: its `options` table.
        leave_out: names of promises that the block does not make.
        settings: `batch`, `draw` or `seed` of the trial.
    """
    return conclude(examine(Trial.of(block, inputs, options, **settings), leave_out=leave_out))


def check_architecture(
    architecture: Given,
    options: Options = None,
    *,
    facts: DataFacts = IMAGES,
    leave_out: LeaveOut = (),
    **settings: Any,
) -> Report:
    """Check an architecture: its nodes, their graph, and the network that reads samples of these facts."""
    return conclude(examine(ArchitectureTrial.of(architecture, options, facts=facts, **settings), leave_out=leave_out))


def check_optimizer(optimizer: Given, options: Options = None, *, leave_out: LeaveOut = (), **settings: Any) -> Report:
    """Check an optimizer: each parameter stepped once, at the groups' rate, and runs continued to the bit."""
    return conclude(examine(OptimizerTrial.of(optimizer, options, **settings), leave_out=leave_out))


def check_lr_schedule(
    lr_schedule: Given, options: Options = None, *, leave_out: LeaveOut = (), **settings: Any
) -> Report:
    """Check a learning-rate schedule: finite, pure and cheap, for short runs and long ones."""
    return conclude(examine(LrScheduleTrial.of(lr_schedule, options, **settings), leave_out=leave_out))


def check_loss(
    loss: Given,
    options: Options = None,
    *,
    output: Sequence[int] = (10,),
    targets: DrawTargets = classes_of,
    leave_out: LeaveOut = (),
    **settings: Any,
) -> Report:
    """Check a loss, on outputs [n, *output] and the targets that `targets` draws for them."""
    trial = LossTrial.of(loss, options, output=output, targets=targets, **settings)
    return conclude(examine(trial, leave_out=leave_out))


def check_metric(
    metric: Given,
    options: Options = None,
    *,
    output: Sequence[int] = (10,),
    targets: DrawTargets = classes_of,
    leave_out: LeaveOut = (),
    **settings: Any,
) -> Report:
    """Check a metric, on outputs [n, *output] and the targets that `targets` draws for them."""
    trial = MetricTrial.of(metric, options, output=output, targets=targets, **settings)
    return conclude(examine(trial, leave_out=leave_out))


def check_dataset(data_set: Given, options: Options = None, *, leave_out: LeaveOut = (), **settings: Any) -> Report:
    """Check a data set, which is opened: its facts, rows, types, and that samples follow from index, seed and epoch."""
    return conclude(examine(DataSetTrial.of(data_set, options, **settings), leave_out=leave_out))


def check_logger(logger: Given, options: Options = None, *, leave_out: LeaveOut = ()) -> Report:
    """Check a logger in a folder of its own."""
    return conclude(examine(LoggerTrial.of(logger, options), leave_out=leave_out))


def check_callback(callback: Given, options: Options = None, *, leave_out: LeaveOut = ()) -> Report:
    """Check a callback in the rehearsal of a run."""
    return conclude(examine(CallbackTrial.of(callback, options), leave_out=leave_out))
