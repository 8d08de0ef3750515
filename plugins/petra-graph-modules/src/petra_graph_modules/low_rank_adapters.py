"""Low-rank adapters (LoRA): what is added to a linear layer that stays as it was trained.

    y = W x + b + (alpha / rank) B A dropout(x)              A [rank, in], B [out, rank] = 0 at the start

Hu et al. 2021, https://arxiv.org/abs/2106.09685. Names, first values and scaling are those of the library `peft`: a layer `q_proj` has
`q_proj.weight` as before, and `q_proj.lora_A.weight` and `q_proj.lora_B.weight` beside it.

Decision: a forward hook on the layer itself, and not `peft`, which renames the layer's own parameters (a pretrained file would no longer
fit) and needs transformers; nor `torch.nn.utils.parametrize`, which renames them too, and makes B A, and its gradient, as large as W.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

NAMES = ("lora_A", "lora_B")


def adaptable(block: nn.Module) -> Iterator[str]:
    """Yield the names of the linear layers that can have an adapter: not those whose owner uses their weight without calling them."""
    for name, module in block.named_modules():
        if getattr(type(module), "forward", None) is nn.Linear.forward and not isinstance(
            module, NonDynamicallyQuantizableLinear
        ):
            yield name


def add_adapters(block: nn.Module, layers: Iterable[str], *, rank: int, alpha: float, dropout: float) -> None:
    """Give linear layers adapters, drawn with torch's generator of now; what the block computes stays the same."""
    for name in layers:
        layer: Any = block.get_submodule(name)
        made: dict[str, Any] = {"bias": False, "device": layer.weight.device, "dtype": layer.weight.dtype}
        layer.lora_A, layer.lora_B = (
            nn.Linear(layer.in_features, rank, **made),
            nn.Linear(rank, layer.out_features, **made),
        )
        nn.init.zeros_(layer.lora_B.weight)
        layer.lora_dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        layer.lora_scaling = alpha / rank
        layer.register_forward_hook(_add)


def _add(layer: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    added: Tensor = layer.lora_B(layer.lora_A(layer.lora_dropout(*inputs)))
    return output + added * float(layer.lora_scaling)


@torch.no_grad()
def merge_adapters(module: nn.Module) -> None:
    """Add each adapter to the weight of its layer, and remove it: the parameters have the names, and the cost, of before.

    A weight that other layers have too stays as it is there: adapters are of one layer.
    """
    adapted: list[Any] = [one for one in module.modules() if hasattr(one, "lora_scaling")]
    for layer in adapted:
        merged = layer.weight + (layer.lora_B.weight @ layer.lora_A.weight) * layer.lora_scaling
        layer.weight = nn.Parameter(merged, layer.weight.requires_grad)
        for name in (*NAMES, "lora_dropout", "lora_scaling"):
            delattr(layer, name)
        hooks = layer._forward_hooks  # noqa: SLF001  torch has no way to ask for a hook by its function
        for number in [number for number, hook in hooks.items() if hook is _add]:
            del hooks[number]
