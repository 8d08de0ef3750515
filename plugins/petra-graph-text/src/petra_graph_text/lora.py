"""Low-rank adapters (LoRA): what is added to a linear layer that stays as it was trained.

    y = W x + b + (alpha / rank) B A dropout(x)              A [rank, in], B [out, rank] = 0 at the start

Hu et al. 2021, https://arxiv.org/abs/2106.09685. Names, first values and scaling are those of the library `peft`: a layer `q_proj` has
`q_proj.weight` as before, and `q_proj.lora_A.weight` and `q_proj.lora_B.weight` beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch
from attrs import frozen
from torch import Tensor, nn

from petra_graph.plugins import AtLeast, GreaterThan, Length, LessThan
from petra_graph.record.weights import SEPARATOR, is_named

NAMES = ("lora_A", "lora_B")


@frozen(kw_only=True)
class LoraOptions:
    """Low-rank adapters of linear layers."""

    on: Annotated[tuple[str, ...], 'linear layers, by name or pattern: "*q_proj", "model.layers.*"', Length(at_least=1)]
    rank: Annotated[int, "features between the two matrices of an adapter", AtLeast(1)] = 8
    alpha: Annotated[float, "the adapter's output is multiplied by alpha / rank", GreaterThan(0)] = 8.0
    dropout: Annotated[float, "probability of dropping an element of the adapter's input", AtLeast(0), LessThan(1)] = (
        0.0
    )


class AdaptedLinear(nn.Linear):
    """A linear layer with an adapter, drawn with torch's generator of now; what it computes stays the same at first."""

    def __init__(self, layer: nn.Linear, options: LoraOptions) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")  # draws nothing
        self.weight, self.bias = layer.weight, layer.bias
        made: dict[str, Any] = {"bias": False, "device": layer.weight.device, "dtype": layer.weight.dtype}
        self.lora_A = nn.Linear(layer.in_features, options.rank, **made)
        self.lora_B = nn.Linear(options.rank, layer.out_features, **made)
        nn.init.zeros_(self.lora_B.weight)
        self.lora_dropout = nn.Dropout(options.dropout) if options.dropout else nn.Identity()
        self.lora_scaling = options.alpha / options.rank

    def forward(self, x: Tensor) -> Tensor:
        value = super().forward(x)
        added: Tensor = self.lora_B(self.lora_A(self.lora_dropout(x)))
        return value + added * self.lora_scaling

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Return the weight of a plain layer that computes the same."""
        return self.weight + (self.lora_B.weight @ self.lora_A.weight) * self.lora_scaling


def add_adapters(block: nn.Module, node: str, options: LoraOptions) -> tuple[str, ...]:
    """Give the linear layers of a node that `on` names adapters, and return the patterns of their tensors' names."""
    for name, layer in list(block.named_modules()):
        if type(layer) is nn.Linear and is_named(options.on, f"{node}{SEPARATOR}{name}"):
            block.set_submodule(name, AdaptedLinear(layer, options))
    return tuple(f"*.{one}.weight" for one in NAMES)


def adapters(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, AdaptedLinear]]:
    """Yield the adapted layers of nodes, by their names."""
    for module in modules.values():
        for name, layer in module.named_modules():
            if isinstance(layer, AdaptedLinear):
                yield name, layer
