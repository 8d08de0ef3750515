"""Plain backpropagation of one micro-batch through all stages, at any parameters, leaving no trace.

The network is the stages' own: their modules, random keys, normalisation, precision and devices, with other parameters in
place of the modules' own and running statistics frozen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor, nn

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.weight_versions import Parameters
from petra_graph.graph.node_graph import INPUT
from petra_graph.program.channels import Edge
from petra_graph.runtime.transport.local import moved

Gradient = Mapping[nn.Parameter, Tensor]
"""By a module's own parameter; one that nothing depends on is not there."""


@frozen(kw_only=True)
class Example:
    """A training micro-batch as the first and the last stage had it."""

    micro_batch: int
    samples: Tensor
    target: Tensor


def gradients(
    executors: Sequence[StageExecutor], example: Example, parameters: Sequence[Parameters], wanted: Collection[int]
) -> Mapping[int, Gradient]:
    """Return the loss's gradient in the stages `wanted`, all stages at the given parameters.

    Args:
        executors: all stages.
        example: the micro-batch.
        parameters: of each stage.
        wanted: places in `executors`; only what lies between them and the loss is differentiated.
    """
    edges: dict[Edge, EncodedTensors] = {}
    leaves: dict[int, dict[nn.Parameter, Tensor]] = {}
    loss: Tensor | None = None
    for index, executor in enumerate(executors):
        device = torch.device(executor.program.device)
        received = {
            edge: moved((example.samples,) if edge.producer == INPUT else edges.pop(edge), device)
            for edge in executor.program.receives
        }
        target = example.target if executor.program.holds_head else None
        at, asked = _leaves(executor, parameters[index], wanted=index in wanted)
        leaves |= {index: asked} if index in wanted else {}
        replayed = executor.replay(example.micro_batch, received, target, at)
        edges.update(replayed.sent)
        loss = replayed.loss if replayed.loss is not None else loss
    assert loss is not None
    return _differentiated(loss, leaves)


def _leaves(
    executor: StageExecutor, parameters: Parameters, *, wanted: bool
) -> tuple[Parameters, dict[nn.Parameter, Tensor]]:
    """Return stand-ins over the same memory, and those that gradients are asked of, by the parameter they stand for."""
    at: dict[str, dict[str, Tensor]] = {}
    asked: dict[nn.Parameter, Tensor] = {}
    for name, module in executor.modules.items():
        at[name] = {}
        for key, live in module.named_parameters():
            at[name][key] = stand_in = parameters[name][key].detach()
            if wanted and live.requires_grad:
                asked[live] = stand_in.requires_grad_()
    return at, asked


def _differentiated(loss: Tensor, leaves: Mapping[int, Mapping[nn.Parameter, Tensor]]) -> Mapping[int, Gradient]:
    asked = [stand_in for of_stage in leaves.values() for stand_in in of_stage.values()]
    found = torch.autograd.grad(loss, asked, allow_unused=True) if asked and loss.requires_grad else [None] * len(asked)
    by_leaf = dict(zip(asked, found, strict=True))
    return {
        index: {live: g for live, stand_in in of_stage.items() if (g := by_leaf[stand_in]) is not None}
        for index, of_stage in leaves.items()
    }
