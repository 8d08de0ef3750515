"""The parameters that the forwards of micro-batches in flight used, for methods whose backward uses them too.

`program.weight_versions` decides when a version is copied and when the copy is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from petra_graph.executor.contributions import report_contribution
from petra_graph.program.weight_versions import WeightVersions

Parameters = Mapping[str, Mapping[str, Tensor]]
"""By node, then by the parameter's name in its module."""


class ParameterVersions(WeightVersions[Parameters]):
    """One stage's parameters over time."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__(lambda: copied_parameters(modules))


def copied_parameters(modules: Mapping[str, nn.Module]) -> Parameters:
    """Return a copy of the parameters of modules."""
    return {
        name: {key: parameter.detach().clone() for key, parameter in module.named_parameters()}
        for name, module in modules.items()
    }


def parameter_leaves(parameters: Parameters, names: Iterable[str]) -> Parameters:
    """Return leaves over the same memory for one micro-batch's backward, for the nodes in `names`."""
    return {name: {key: tensor.detach().requires_grad_() for key, tensor in parameters[name].items()} for name in names}


@torch.no_grad()
def accumulate_grad(parameters: Parameters, modules: Mapping[str, nn.Module]) -> None:
    """Add the gradients of an older version to those of the modules' own parameters, which the optimizer steps."""
    for name, of_node in parameters.items():
        live = dict(modules[name].named_parameters())
        for key, tensor in of_node.items():
            if tensor.grad is not None and live[key].requires_grad:
                report_contribution(live[key], tensor.grad)
                grad = live[key].grad
                live[key].grad = tensor.grad if grad is None else grad.add_(tensor.grad)
