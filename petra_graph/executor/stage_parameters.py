"""A stage's parameters between forward and backward: their older versions, the gradients that are added to them.

`program.weight_versions` decides when a version is copied and when the copy is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache, partial

import torch
from torch import Tensor, nn

from petra_graph.program.stage_program import StageProgram
from petra_graph.program.weight_versions import WeightVersions

observed: ContextVar[Callable[[nn.Parameter, Tensor], None] | None] = ContextVar("petra_graph_observed", default=None)
"""Called with each gradient of an older version before it is added, which hooks of the parameters do not see. None: nobody asks.
A context variable, since `accumulate_grad` is reached through segment runners, which take no observer."""

Parameters = Mapping[str, Mapping[str, Tensor]]
"""By node, then by the parameter's name in its module."""
ParameterVersions = WeightVersions[Parameters]
"""One stage's parameters over time."""


def copied_parameters(modules: Mapping[str, nn.Module]) -> Parameters:
    copied = cache(lambda parameter: parameter.detach().clone())  # nodes of a stage may share one
    return {
        name: {key: copied(parameter) for key, parameter in module.named_parameters()}
        for name, module in modules.items()
    }


def parameter_leaves(parameters: Parameters, modules: Mapping[str, nn.Module]) -> Parameters:
    """Return leaves over the same memory for one micro-batch's backward, for the nodes in `modules`.

    Those of frozen parameters, which may be integers, ask for no gradient.
    """
    return {
        name: {
            key: parameters[name][key].detach().requires_grad_(own.requires_grad)
            for key, own in module.named_parameters()
        }
        for name, module in modules.items()
    }


@torch.no_grad()
def accumulate_grad(parameters: Parameters, modules: Mapping[str, nn.Module]) -> None:
    """Add the gradients of an older version to those of the modules' own parameters, which the optimizer steps."""
    for name, of_node in parameters.items():
        live = dict(modules[name].named_parameters())
        for key, tensor in of_node.items():
            if tensor.grad is not None:
                if (observer := observed.get()) is not None:
                    observer(live[key], tensor.grad)
                grad = live[key].grad
                live[key].grad = tensor.grad if grad is None else grad.add_(tensor.grad)


def stored_versions(program: StageProgram, modules: Mapping[str, nn.Module]) -> ParameterVersions | None:
    """Return the versions of the parameters that a backward may need at an older version; None where none does."""
    stored = [segment for segment in program.segments if segment.backward == "stored" and segment.kind != "head"]
    names = [name for segment in stored for name in segment.nodes]
    own = {name: modules[name] for name in names}
    return WeightVersions(partial(copied_parameters, own)) if own else None
