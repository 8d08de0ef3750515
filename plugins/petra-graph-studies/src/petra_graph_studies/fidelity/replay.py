"""Plain backpropagation of one micro-batch through all stages, at parameters of the past, without side effects.

The network is the stages' own: their modules, random keys, normalisation, precision and devices. Parameters as they
were after given numbers of updates take the place of the modules' own, and running statistics are frozen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from petra_graph.blocks import Streams, frozen_statistics
from petra_graph.executor.head import HeadRunner
from petra_graph.executor.runners import Parameters, copied_parameters
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.kinds.tensor_trees import Tree
from petra_graph.program.channels import Edge
from petra_graph.runtime.transport.channel import moved
from petra_graph_studies.fidelity.clock import Versions

Gradient = Mapping[nn.Parameter, Tensor]
"""By a module's own parameter; a parameter that the loss does not depend on is missing."""


def gradients(
    executors: Sequence[StageExecutor],
    micro_batch: int,
    *,
    samples: Streams,
    target: Tree,
    parameters: Sequence[Parameters],
    stages: Collection[int],
) -> Mapping[int, Gradient]:
    """Return the loss's gradient in some stages, with all stages at the given parameters.

    Args:
        micro_batch: a training micro-batch, whose random numbers are drawn.
        stages: indices of `executors`; only the stages between them and the loss are differentiated.
    """
    read = (edge for executor in executors for edge in executor.program.receives if edge.producer == INPUT)
    edges: dict[Edge, Streams] = dict.fromkeys(read, samples)
    leaves: dict[tuple[int, nn.Parameter], Tensor] = {}
    loss: Tensor | None = None
    for index, executor in enumerate(executors):
        detached = {
            name: {key: value.detach() for key, value in of_node.items()} for name, of_node in parameters[index].items()
        }
        if index in stages:
            for name, module in executor.modules.items():
                for key, live in module.named_parameters():
                    if live.requires_grad:
                        leaves[index, live] = detached[name][key].requires_grad_()
        loss = _forward(executor, micro_batch, edges, target, detached)
    assert loss is not None
    found: dict[int, dict[nn.Parameter, Tensor]] = {index: {} for index in stages}
    if leaves and loss.requires_grad:
        made = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for (index, live), gradient in zip(leaves, made, strict=True):
            if gradient is not None:
                found[index][live] = gradient
    return found


def _forward(
    executor: StageExecutor,
    micro_batch: int,
    edges: dict[Edge, Streams],
    target: Tree,
    parameters: Parameters,
) -> Tensor | None:
    """Run the forward of a stage with a graph that ends in `parameters`; it leaves no trace.

    Args:
        edges: what earlier stages have sent; the stage takes what it reads, and adds what it sends.

    Returns:
        The loss of the stage that holds the head, times the share of the targets that count.
    """
    loss: Tensor | None = None
    device = torch.device(executor.program.device)
    with torch.enable_grad(), frozen_statistics(*executor.modules.values()):
        for segment, runner in executor.runners:
            read = chain.from_iterable(moved(edges.pop(entry.edge), device) for entry in segment.inputs)
            outputs = runner.run(micro_batch, cast(Streams, tuple(read)), parameters)
            edges |= dict.fromkeys(segment.outputs, outputs)
            if isinstance(runner, HeadRunner):
                compared = runner.compare(micro_batch, runner.returned(outputs), target)
                loss = compared.loss * compared.share
    return loss


class Snapshots:
    """The parameters of all stages as they were after given numbers of updates, counted from a drain.

    A version is copied when an update is about to overwrite it while a request for it is open. The copy is dropped when
    the last request for it is closed.
    """

    def __init__(self, executors: Sequence[StageExecutor], updates: Sequence[int] | None = None) -> None:
        """Begin.

        Args:
            updates: of each stage since the drain; None: this is a drain.
        """
        self._executors = executors
        self._updates = [0] * len(executors) if updates is None else list(updates)
        self._requests: Counter[tuple[int, int]] = Counter()
        """Open requests by stage and version."""
        self._copies: dict[tuple[int, int], Parameters] = {}

    def request(self, versions: Versions) -> None:
        """Request one version of each stage, before any of them is overwritten."""
        self._requests.update(enumerate(versions))

    def release(self, versions: Versions) -> None:
        for key in enumerate(versions):
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]
                self._copies.pop(key, None)

    def before_update(self, stage: int) -> None:
        """Copy a stage's parameters where their version is requested, since the update overwrites them."""
        key = stage, self._updates[stage]
        if key in self._requests:
            self._copies[key] = copied_parameters(self._executors[stage].modules)

    def after_update(self, stage: int) -> None:
        self._updates[stage] += 1

    def reached(self, versions: Versions) -> bool:
        """Return whether every stage has made at least as many updates."""
        return all(made >= version for made, version in zip(self._updates, versions, strict=True))

    def at(self, versions: Versions) -> list[Parameters]:
        """Return each stage's parameters: a copy, or the modules' own until their next update."""
        live = [
            {name: dict(module.named_parameters()) for name, module in stage.modules.items()}
            for stage in self._executors
        ]
        return [self._copies.get((stage, version), live[stage]) for stage, version in enumerate(versions)]
