"""The parameters that the forwards of micro-batches in flight used, for methods whose backward uses them too.

A copy is made for each distinct version and only when an update is about to overwrite one that is in use, so a stage
holds at most ceil(staleness / k) copies, and none where the pipeline flushes first. PipeDream calls this weight stashing
(Harlap et al. 2018, section 3.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from attrs import define, field
from torch import Tensor, nn

from petra_graph.executor.contributions import report_contribution

Parameters = Mapping[str, Mapping[str, Tensor]]
"""By node, then by the parameter's name in its module."""


@define(eq=False)
class ParameterVersions:
    """One stage's parameters over time; versions count its updates."""

    modules: Mapping[str, nn.Module]
    current: int = field(default=0, init=False)
    copies: dict[int, Parameters] = field(factory=dict, init=False)
    _version_of: dict[int, int] = field(factory=dict, init=False)
    _users: Counter[int] = field(factory=Counter, init=False)

    def begin(self, micro_batch: int) -> None:
        """Record that a forward uses the current version."""
        self._version_of[micro_batch] = self.current
        self._users[self.current] += 1

    def end(self, micro_batch: int) -> None:
        """Forget a micro-batch after its backward; the copy of its version goes with the last user."""
        version = self._version_of.pop(micro_batch)
        self._users[version] -= 1
        if not self._users[version]:
            del self._users[version]
            self.copies.pop(version, None)

    def before_step(self) -> None:
        """Copy the current version if a micro-batch in flight uses it: the parameters change next."""
        if self._users[self.current]:
            self._copy_current()
        self.current += 1

    def older(self, micro_batch: int) -> Parameters | None:
        """Return the parameters of a micro-batch's forward; None where the modules still hold them."""
        version = self._version_of[micro_batch]
        return None if version == self.current else self.copies[version]

    def copy_for(self, micro_batch: int) -> Parameters:
        """Return a copy of the parameters of a micro-batch's forward, which no update changes."""
        if self._version_of[micro_batch] not in self.copies:
            self._copy_current()
        return self.copies[self._version_of[micro_batch]]

    def _copy_current(self) -> None:
        if self.current not in self.copies:
            self.copies[self.current] = copied_parameters(self.modules)


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
