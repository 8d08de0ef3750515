"""The adapters of a network as the library `peft` saves them: adapter_config.json and adapter_model.safetensors.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight      "base_model.model." and the layer's name in the model
    target_modules = ["q_proj"]                                         names, or ends of names

Source: https://huggingface.co/docs/peft/developer_guides/checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Block
from petra_graph.errors import SpecError
from petra_graph.graph_passes import NodeGraph
from petra_graph.units import listed
from petra_graph_modules.finetuned_graph import Tuned
from petra_graph_modules.low_rank_adapters import NAMES, adaptable

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_LISTED = 4


@frozen(kw_only=True)
class PeftAdapter:
    """What both files hold."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def peft_adapter(
    graph: NodeGraph, block_of: Callable[[str], Block], named: Callable[[str, str], str], **more: Any
) -> PeftAdapter:
    """Return the adapters of a trained network.

    Args:
        graph: its nodes.
        block_of: a node's block, with its adapters.
        named: (node, key in its block) -> the key in the model that `peft` will adapt.
        more: values of the configuration, such as `task_type`.

    Raises:
        SpecError: the network has no adapters, or other parameters were trained beside them.
    """
    tunings = {name: one for name, node in graph.nodes.items() for one in node.wrappers if isinstance(one, Tuned)}
    adapted = {(name, layer) for name, one in tunings.items() for layer in one.adapted}
    if not adapted:
        hint = "export the whole network; an adapter is trained with [finetune] lora = { on = [...] }"
        raise SpecError("the network has no adapters", hint)
    if others := [f"{name}/{key}" for name, one in tunings.items() for key in one.trained]:
        message = f"beside its adapters, the run has trained {listed(others, _LISTED)}, and a folder of peft has adapters alone"
        raise SpecError(message, "export the whole network, or train adapters alone: leave finetune.trained out")
    (lora,) = {one.lora for one in tunings.values()}
    assert lora is not None
    whole = {(name, layer) for name in graph.nodes for layer in adaptable(block_of(name)) if not layer.endswith(NAMES)}

    def is_whole(end: str) -> bool:
        return {one for one in whole if _end(one[1]) == end} <= adapted

    targets = {_end(layer) if is_whole(_end(layer)) else named(name, layer) for name, layer in adapted}
    states = {name: block_of(name).state_dict() for name, _ in adapted}
    tensors = {
        _PREFIX + named(name, f"{layer}.{one}.weight"): states[name][f"{layer}.{one}.weight"]
        for name, layer in sorted(adapted)
        for one in NAMES
    }
    config = {
        "peft_type": "LORA",
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": sorted(targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
        **more,
    }
    return PeftAdapter(config=config, tensors=tensors)


def _end(layer: str) -> str:
    return layer.rpartition(".")[2]
