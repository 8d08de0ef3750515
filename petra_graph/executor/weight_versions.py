"""The parameters that micro-batches in flight have seen, for methods whose backward uses those of the forward.

A copy is made for each distinct version and only when an update is about to overwrite one that is in use, so a stage
holds at most ceil(staleness / k) copies, and none where the pipeline flushes first. PipeDream calls this weight stashing
(Harlap et al. 2018, section 3.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from petra_graph.executor.contributions import report_contribution

Parameters = Mapping[str, Mapping[str, Tensor]]
"""By node, then by the parameter's name in its module."""


class ParameterVersions:
    """One stage's parameters over time; versions count its updates."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.modules = modules
        self.current = 0
        self.copies: dict[int, Parameters] = {}
        self._seen: dict[int, int] = {}
        self._users: Counter[int] = Counter()

    def begin(self, micro_batch: int) -> None:
        """Note that a forward sees the current version."""
        self._seen[micro_batch] = self.current
        self._users[self.current] += 1

    def end(self, micro_batch: int) -> None:
        """Forget a micro-batch after its backward, and its version with its last user."""
        version = self._seen.pop(micro_batch)
        self._users[version] -= 1
        if not self._users[version]:
            del self._users[version]
            self.copies.pop(version, None)

    def before_step(self) -> None:
        """Keep the current version if somebody still needs it: the parameters change next."""
        if self._users[self.current]:
            self._keep()
        self.current += 1

    def seen(self, micro_batch: int) -> Parameters | None:
        """Return what the forward of a micro-batch saw; None: it is what the modules hold now."""
        version = self._seen[micro_batch]
        return None if version == self.current else self.copies[version]

    def kept(self, micro_batch: int) -> Parameters:
        """Return a copy of what the forward of a micro-batch sees, which no update will touch."""
        if self._seen[micro_batch] not in self.copies:
            self._keep()
        return self.copies[self._seen[micro_batch]]

    def _keep(self) -> None:
        if self.current not in self.copies:
            self.copies[self.current] = copied(self.modules)


def copied(modules: Mapping[str, nn.Module]) -> Parameters:
    """Return a copy of what modules hold."""
    return {
        name: {key: parameter.detach().clone() for key, parameter in module.named_parameters()}
        for name, module in modules.items()
    }


def leaves(parameters: Parameters, names: Mapping[str, object]) -> Parameters:
    """Return leaves over the same memory for one micro-batch's backward, of the nodes in `names`."""
    return {name: {key: tensor.detach().requires_grad_() for key, tensor in parameters[name].items()} for name in names}


@torch.no_grad()
def accumulate_grad(parameters: Parameters, modules: Mapping[str, nn.Module]) -> None:
    """Add gradients at an older version to those of the parameters that will be stepped."""
    for name, of_node in parameters.items():
        live = dict(modules[name].named_parameters())
        for key, tensor in of_node.items():
            if tensor.grad is not None and live[key].requires_grad:
                report_contribution(live[key], tensor.grad)
                grad = live[key].grad
                live[key].grad = tensor.grad if grad is None else grad.add_(tensor.grad)
