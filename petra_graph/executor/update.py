"""A stage's parameter update: average over the window, clip, set the learning rate, step.

Gradients are summed in each parameter's `grad` by the backwards of a window, and divided once by its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch
from attrs import define, field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from petra_graph.blocks import Block
from petra_graph.executor.learning_rate import LearningRate
from petra_graph.registry.contracts import ParameterGroups
from petra_graph.spec.model import ClipSpec


def parameter_groups(modules: Iterable[Block]) -> ParameterGroups:
    """Split parameters by whether weight decay applies: not to biases and normalisation parameters.

    Goyal et al. 2017, section 5.3.
    """
    decayed: list[nn.Parameter] = []
    undecayed: list[nn.Parameter] = []
    seen: set[int] = set()
    for block in modules:
        for module in block.modules():
            normalises = _normalises(module)
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in seen:  # two layers of a block may share one
                    continue
                seen.add(id(parameter))
                (undecayed if normalises or name.endswith("bias") else decayed).append(parameter)
    return ParameterGroups(decayed=decayed, undecayed=undecayed)


def _normalises(module: nn.Module) -> bool:
    """Whether a module is one of torch's normalisations, or an author's with a name like theirs: ScaleNorm, LayerNorm2d."""
    if isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm):
        return True
    named = re.search(r"Norm([123]d)?$", type(module).__name__) is not None
    return named and not isinstance(module, _ConvNd | nn.Linear)


@define(eq=False, slots=False)
class Updater:
    """One stage's optimizer, with the averaging, clipping and learning rate of its step."""

    parameters: Sequence[nn.Parameter]
    optimizer: torch.optim.Optimizer | None
    """None where the stage has no parameters."""
    rate: LearningRate
    clip: ClipSpec | None
    updates: int = field(default=0, init=False)
    """The stage's own count of steps, u."""
    window: int = field(default=0, init=False)
    """Micro-batches accumulated since the last step."""

    def accumulated(self) -> None:
        """Count one more micro-batch in the window."""
        self.window += 1

    def average(self) -> None:
        """Turn the window's sums into means, once; afterwards the window is empty."""
        gradients = self._gradients()
        if self.window > 1 and gradients:
            torch._foreach_div_(gradients, float(self.window))
        self.window = 0

    def squared_norm(self) -> Tensor:
        """Return the squared norm of the window's mean gradient, a scalar on the CPU in float64."""
        self.average()
        gradients = self._gradients()
        if not gradients:
            return torch.zeros((), dtype=torch.float64)
        return torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().cpu()

    def step(self, norm: Tensor | None = None) -> None:
        """Step with the window's mean gradient, clipped by its own norm, or by `norm` where all stages share one."""
        self.average()
        if self.optimizer is not None:
            self._clip(norm)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(self.updates)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1

    def _clip(self, norm: Tensor | None) -> None:
        if self.clip is None:
            return
        if self.clip.by == "value":
            nn.utils.clip_grad_value_(self.parameters, self.clip.limit)
            return
        total = self.squared_norm().sqrt() if norm is None else norm
        if total > self.clip.limit:
            torch._foreach_mul_(self._gradients(), float(self.clip.limit / total))

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]
