"""Plain backpropagation of one micro-batch through all stages, at any parameters, without side effects.

The network is the stages' own: their modules, random keys, normalisation, precision and devices. Other parameters take
the place of the modules' own, and running statistics are frozen.
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
"""By a module's own parameter; a parameter that the loss does not depend on is missing."""


@frozen(kw_only=True)
class Example:
    """A training micro-batch: the samples of the first stage, the targets of the last."""

    micro_batch: int
    samples: Tensor
    target: Tensor


def gradients(
    executors: Sequence[StageExecutor], example: Example, parameters: Sequence[Parameters], stages: Collection[int]
) -> Mapping[int, Gradient]:
    """Return the loss's gradient in some stages, with all stages at the given parameters.

    Args:
        executors: all stages.
        example: the micro-batch.
        parameters: of each stage.
        stages: indices of `executors`; only the stages between them and the loss are differentiated.
    """
    edges: dict[Edge, EncodedTensors] = {}
    leaves: dict[tuple[int, nn.Parameter], Tensor] = {}
    loss: Tensor | None = None
    for index, executor in enumerate(executors):
        device = torch.device(executor.program.device)
        received = {
            edge: moved((example.samples,) if edge.producer == INPUT else edges.pop(edge), device)
            for edge in executor.program.receives
        }
        target = example.target if executor.program.holds_head else None
        detached = {
            name: {key: value.detach() for key, value in of_node.items()} for name, of_node in parameters[index].items()
        }
        if index in stages:
            for name, module in executor.modules.items():
                for key, live in module.named_parameters():
                    if live.requires_grad:
                        leaves[index, live] = detached[name][key].requires_grad_()
        replayed = executor.replay(example.micro_batch, received, target, detached)
        edges.update(replayed.sent)
        loss = replayed.loss if replayed.loss is not None else loss
    assert loss is not None
    found: dict[int, dict[nn.Parameter, Tensor]] = {index: {} for index in stages}
    if leaves and loss.requires_grad:
        made = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        for (index, live), gradient in zip(leaves, made, strict=True):
            if gradient is not None:
                found[index][live] = gradient
    return found
