"""The contracts of plugins: torch-free declarations that entry points name. Authors import them from `petra_graph.plugins`.

A declaration describes a plugin, the class of its options and the location of its code (`build = "module:attribute"`),
which is imported only when the plugin is built. So a specification is checked without importing torch.

Each contract below states the signature that `build` must have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs
from attrs import frozen

from petra_graph.spec.bounds import AtLeast, AtMost, Bound, Each, GreaterThan, Length, LessThan, OneOf
from petra_graph.spec.keys import key

if TYPE_CHECKING:
    import numpy as np
    import torch

__all__ = [
    "API_VERSION",
    "ARCHITECTURES",
    "BLOCKS",
    "CALLBACKS",
    "DATASETS",
    "LOGGERS",
    "LOSSES",
    "LR_SCHEDULES",
    "OPTIMIZERS",
    "ArchitectureDeclaration",
    "AtLeast",
    "AtMost",
    "BlockDeclaration",
    "Bound",
    "BuildOptimizer",
    "CallbackDeclaration",
    "Changes",
    "DataFacts",
    "DataSet",
    "DataSetDeclaration",
    "Declaration",
    "Each",
    "GreaterThan",
    "Horizon",
    "Length",
    "LessThan",
    "LoggerDeclaration",
    "Loss",
    "LossDeclaration",
    "LrScheduleDeclaration",
    "NoOptions",
    "OneOf",
    "OptimizerDeclaration",
    "ParameterGroups",
    "Split",
    "option",
]

BLOCKS = "petra_graph.blocks"
ARCHITECTURES = "petra_graph.architectures"
OPTIMIZERS = "petra_graph.optimizers"
LR_SCHEDULES = "petra_graph.lr_schedules"
LOSSES = "petra_graph.losses"
DATASETS = "petra_graph.datasets"
LOGGERS = "petra_graph.loggers"
CALLBACKS = "petra_graph.callbacks"

Changes = Literal["nothing", "length", "weights"]


@frozen(kw_only=True)
class NoOptions:
    """A plugin without options."""


def option(
    text: str, *, default: Any = attrs.NOTHING, unit: str = "", validator: Any = None, is_path: bool = False
) -> Any:
    """Return one option of a plugin's `Options` class; required without a default.

    Args:
        text: its meaning.
        default: its default.
        unit: of its value.
        validator: bounds, exported here beside `option`: `AtLeast(1)`, or a list, `[AtLeast(0), LessThan(1)]`. They give
            messages, the listing of `petra-graph show` and the JSON schema (see `petra_graph.spec.bounds`). A rule that
            they cannot say is a function (instance, attribute, value) that raises `ValueError("must be odd")`.
        is_path: the value names a file or folder that is read; it is relative to the file that gives it.
    """
    return key(default, text, unit=unit, validator=validator, is_path=is_path)


API_VERSION = 1
"""The version of the contracts in this module. It grows when a plugin that kept them before would not keep them any more."""


@frozen(kw_only=True)
class Declaration:
    """The declaration of any plugin.

    Attributes:
        summary: one sentence.
        options: a frozen, keyword-only attrs class; its fields are the allowed keys of the plugin's `options` table.
        build: the location of the code, "module:attribute"; imported when the plugin is built.
        api: the version of the contracts that the plugin was written for. A declaration that states none was written for 1,
            the first; a petra-graph that keeps other contracts refuses the plugin, and names both versions.
    """

    summary: str
    options: type = NoOptions
    build: str
    api: int = 1


@frozen(kw_only=True)
class BlockDeclaration(Declaration):
    """A block; `build` names a `petra_graph.blocks.Block` subclass, built as `cls(inputs, options)`.

    Attributes:
        kind: the most that the block can be: a reversible block may also be a buffered node.
        streams: the number of tensors that the block reads; None: any number.
    """

    kind: Literal["reversible", "buffered", "head"]
    streams: int | None = None


@frozen(kw_only=True)
class DataFacts:
    """The properties of a data set that its declaration gives before any file is opened.

    Attributes:
        shape: of one sample, without the batch dimension; images are channels, height, width.
        dtype: of the samples.
        classes: class indices in targets are below this; None where that depends on the files, or where targets are not
            classes.
        target_shape: of one target, without the batch dimension: () for a class or a number, (tokens,) for a class each token,
            (height, width) for one each pixel.
        target_dtype: int64 for class indices, floats for values.
        mean: of each channel in [0, 1] (uint8 divided by 255); None: no normalisation.
        std: of each channel, likewise; given with the mean or not at all.
        class_names: the names of the classes, by number; None where they have none.
    """

    shape: tuple[int, ...]
    dtype: Literal["uint8", "int64", "float32", "float64"] = "uint8"
    classes: int | None = None
    target_shape: tuple[int, ...] = ()
    target_dtype: Literal["int64", "float32", "float64"] = "int64"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None


@frozen(kw_only=True)
class ArchitectureDeclaration(Declaration):
    """A network by name; `build` names a torch-free function (options, DataFacts) -> tuple of NodeSpec.

    It may raise `SpecError` with problems, whose paths count from its own options.
    """


@frozen(kw_only=True)
class OptimizerDeclaration(Declaration):
    """An optimizer; `build` names a function (ParameterGroups, options) -> torch.optim.Optimizer.

    The options class must have a float field `lr`, the base learning rate. The executor sets each group's "lr" before
    every step. A group that was built with a multiple of `options.lr` has that multiple of the rate at every step.
    """


@frozen(kw_only=True)
class ParameterGroups:
    """A stage's parameters, split by whether weight decay (and LARS's trust ratio) applies to them; either may be empty.

    Attributes:
        decayed: those to which it applies.
        undecayed: normalisation parameters, biases, and those that their block names in its attribute `undecayed`.
    """

    decayed: Sequence[torch.nn.Parameter]
    undecayed: Sequence[torch.nn.Parameter]


BuildOptimizer = Callable[[ParameterGroups, Any], "torch.optim.Optimizer"]
"""Signature behind `OptimizerDeclaration.build`: (groups, options) -> the optimizer of one stage."""


@frozen(kw_only=True)
class Horizon:
    """The length of a run in updates, for learning-rate schedules.

    Attributes:
        updates: of the whole run; the schedule is asked for u = 0 .. updates - 1.
        updates_per_epoch: of one epoch.
        warmup_updates: at the run's start, over which the rate rises; counted in `updates`.
    """

    updates: int
    updates_per_epoch: int
    warmup_updates: int


@frozen(kw_only=True)
class LrScheduleDeclaration(Declaration):
    """A learning-rate schedule; `build` names a torch-free function (options, Horizon) -> factor(u).

    `factor(u)` multiplies the base learning rate at the stage's update u = 0, 1, ...; warm-up is applied outside.
    """


@frozen(kw_only=True)
class LossDeclaration(Declaration):
    """A loss; `build` names a function (options) -> Loss."""


class Loss(Protocol):
    """A loss: the mean over samples in training, and the counts of evaluation.

    A loss whose samples do not all count alike also has the method `target_weight(target) -> float`: the sum of their weights,
    on the CPU; a sample counts 1 where there is no reason for another number, and 0 if it is passed over. The loss is then the
    weighted mean; it is not asked for a batch of weight 0. Windows, replicas, evaluations and metrics divide by the sum of these
    weights, so that none of their means depends on how the samples are batched.
    """

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the mean loss over the samples, a scalar with a graph."""

    def metrics(self, output: torch.Tensor, target: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return sums over the samples, scalars without a graph: "top1" and "top5" count correct samples.

        Where a sample has several targets, it counts with the share of those that are correct. Each sum is divided by that of the
        samples' weights.
        """


def target_weight(loss: Loss, target: torch.Tensor) -> float:
    """Return the weight of a batch's targets, on the CPU: the number of samples, where the loss gives none.

    Targets without values, on the meta device, count in full.
    """
    stated: Callable[[torch.Tensor], float] | None = getattr(loss, "target_weight", None)
    return float(len(target)) if stated is None or target.is_meta else stated(target)


def mean_loss(loss: Loss, output: torch.Tensor, target: torch.Tensor, weight: float) -> torch.Tensor:
    """Return the loss of a batch with this weight: 0 where nothing counts, of which torch's means are not numbers."""
    return loss(output, target) if weight else (output * 0.0).sum()


@frozen(kw_only=True)
class DataSetDeclaration(Declaration):
    """A data set; `build` names a function (options) -> DataSet that opens the files.

    Where files are missing, it raises `SpecError` with a hint that names the remedy; paths of problems count from its own options.

    Attributes:
        facts: a torch-free function of the options alone; it opens no file.
        training_samples: a torch-free function (options) -> how many samples the training has, or None; it counts no file. Plans
            then say what an epoch takes.
        read: the location of a function (options, path) -> samples [*shape] or [n, *shape], for `petra-graph predict`: how a
            file becomes samples; None: images are brought to the size of a sample. Arrays (.npy) are read without it.
    """

    facts: Callable[[Any], DataFacts]
    training_samples: Callable[[Any], int | None] | None = None
    read: str | None = None


class Split(Protocol):
    """The training or the test split of a data set.

    A split may also have `fetch_targets(indices) -> targets [n, *target_shape]`: a process that hosts the head, but not the first
    stage, then decodes no image.
    """

    def __len__(self) -> int:
        """Return the number of samples."""

    def fetch(self, indices: np.ndarray, *, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Load samples: images [n, *shape] in the data set's dtype, and targets [n, *target_shape].

        Augmentation is a function of (seed, epoch, index) alone: a sample depends neither on the other indices of the
        call, nor on the calling process, nor on the number of calls. Images may be in channels-last memory format.
        """


class DataSet(Protocol):
    """An opened data set."""

    @property
    def train(self) -> Split:
        """The training split."""

    @property
    def test(self) -> Split:
        """The test split."""

    @property
    def facts(self) -> DataFacts:
        """The declaration's facts, completed from the files."""


@frozen(kw_only=True)
class LoggerDeclaration(Declaration):
    """A logger; `build` names a function (options, RunInfo) -> Logger.

    Attributes:
        requires: the module of another package, without which the logger cannot work; "": it needs none.
        install: the command that installs that package.
    """

    requires: str = ""
    install: str = ""


@frozen(kw_only=True)
class CallbackDeclaration(Declaration):
    """A callback; `build` names a function (options) -> Callback.

    Attributes:
        changes: the most that it may change of a run: nothing that the run computes, its number of epochs, or its weights.
        reads_weights: whether `evaluated_weights` is to be called; the stages of other processes then send theirs.
    """

    changes: Changes = "nothing"
    reads_weights: bool = False

    @property
    def effect(self) -> str:
        """What it may change, in words."""
        return "changes nothing" if self.changes == "nothing" else f"may change the run's {self.changes}"
