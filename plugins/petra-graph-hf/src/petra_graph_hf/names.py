"""Names of tensors: in the network's nodes, in transformers' `state_dict`, and back.

model.embed_tokens/embed_tokens.weight             model.embed_tokens.weight
model.layers.3/layer.mlp.up_proj.weight            model.layers.3.mlp.up_proj.weight
lm_head/norm.weight                                model.norm.weight
lm_head/lm_head.weight                             lm_head.weight
"""

from __future__ import annotations

import re

EMBEDDING, LAYERS, HEAD = "model.embed_tokens", "model.layers", "lm_head"
"""Nodes, by their module in transformers."""
EMBEDDING_WEIGHT, HEAD_WEIGHT = "model.embed_tokens.weight", "lm_head.weight"
_LAYER = re.compile(r"(model\.layers\.\d+)\.(.+)")


def of_node(name: str) -> str:
    """Return the network's name of a tensor of transformers; any other name as it is."""
    layer = _LAYER.fullmatch(name)
    if layer:
        return f"{layer[1]}/layer.{layer[2]}"
    if name.startswith("model.norm."):
        return f"{HEAD}/{name.removeprefix('model.')}"
    if name.startswith("lm_head."):
        return f"{HEAD}/{name}"
    return f"{EMBEDDING}/{name.removeprefix('model.')}" if name.startswith(f"{EMBEDDING}.") else name


def of_transformers(node: str, key: str) -> str:
    """Return the name in transformers' `state_dict` of a node's tensor."""
    if key.startswith("layer."):
        return f"{node}.{key.removeprefix('layer.')}"
    return key if key.startswith("lm_head.") else f"model.{key}"
