"""A loss with the outputs and targets that it compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.loss import (
    LOSS,
    Loss,
)
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.kinds.tensor_trees import Tree, main, mapped
from petra_graph_conformance.outputs_and_targets import (
    TARGETS,
    DrawTargets,
    classes_of,
    likely_outputs,
    of_shapes,
    outputs_for,
    shape_of,
)
from petra_graph_conformance.plugin_trial import PluginTrial


@frozen(kw_only=True)
class LossTrial(PluginTrial):
    """A loss with options, and the outputs and targets that it compares.

    Attributes:
        plugin: the loss.
        options: an instance of its own options class.
        output: shape of the head's output for one sample; of several outputs, those shapes in their tuple or dictionary.
        targets: draws the targets of a batch: one of `TARGETS`, or a function of one's own.
        samples: in a batch.
        seed: outputs and targets follow from it.
        of_run: the loss as a run has built it, and targets of the run's data, instead of new ones.
        outputs: what the run's network returns for the samples of these targets; None: outputs are drawn.
        micro_batch: targets of a whole micro-batch of a run.
        head: draws outputs of a run's head.
    """

    output: Any = field(default=(10,), converter=shape_of)
    targets: DrawTargets = classes_of
    samples: int = 8
    seed: int = 0
    of_run: tuple[Loss, Tree] | None = field(default=None, repr=False, eq=False)
    outputs: Tree = field(default=None, repr=False, eq=False)
    micro_batch: Tensor | None = field(default=None, repr=False, eq=False)
    head: Callable[[], Tensor] | None = field(default=None, repr=False, eq=False)

    @staticmethod
    def of_kind() -> PluginKind:
        return LOSS

    @property
    def about(self) -> str:
        drawn = next((name for name, draw in TARGETS.items() if draw is self.targets is not classes_of), "")
        shape = self.output if isinstance(self.output, Mapping) else list(self.output)
        return f"outputs {shape}{drawn and f', targets {drawn}'}; {self.options}"

    def loss(self) -> Loss:
        """Return the loss, without a guard; the loss of a run keeps its guard."""
        built: Loss = self.build_raw(self.options) if self.of_run is None else self.of_run[0]
        return built

    def batch(self, dtype: torch.dtype | None = None) -> tuple[Tree, Tree]:
        """Return outputs with a graph, float64 unless another type is given, and targets."""
        if self.of_run is not None:
            drawn = (
                outputs_for(self.output, main(self.of_run[1])) if self.outputs is None else mapped(_leaf, self.outputs)
            )
            return drawn, self.of_run[1]
        generator = torch.Generator().manual_seed(self.seed)
        output = of_shapes(
            self.output, lambda shape: torch.randn(self.samples, *shape, generator=generator, dtype=torch.float64)
        )
        return mapped(lambda one: one.to(dtype or torch.float64).requires_grad_(), output), self.targets(
            output, generator
        )

    def attempt(self) -> None:
        loss, (output, target) = self.loss(), self.batch()
        loss(output, target)
        with author_code(self.plugin.owned):  # its metrics fail on what the loss itself takes
            loss.metrics(detached(output), target)


def _leaf(stream: Tensor) -> Tensor:
    found = stream.detach().clone()
    return found.requires_grad_(found.is_floating_point())


def detached(output: Tree) -> Tree:
    return mapped(lambda one: one.detach(), output)


def rows_of(tree: Tree, rows: slice) -> Tree:
    return mapped(lambda one: one[rows], tree)


def likely_losses(plugin: Plugin, options: Any, given: Mapping[str, Any]) -> Sequence[LossTrial]:
    return [LossTrial.of(plugin, options, output=output, targets=draw) for output, draw in likely_outputs(given)]
