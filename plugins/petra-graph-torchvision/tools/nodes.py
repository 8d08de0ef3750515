"""Write `nodes.json`: the nodes of every network of the installed torchvision, and which are residual blocks.

python plugins/petra-graph-torchvision/tools/nodes.py
"""

from __future__ import annotations

import json
import operator
from pathlib import Path

import petra_graph_torchvision
import torch
from petra_graph_modules.cutting import CutNetwork, Part, copy_part
from petra_graph_torchvision.declared import PieceOptions
from petra_graph_torchvision.networks import cut_network
from torch import fx, nn
from torchvision import models

TABLE = Path(petra_graph_torchvision.__file__).with_name("nodes.json")
SIDE = 256
"""Of the images with which shapes are compared: every network reads them, but for ViT-H, whose squares are of 14 pixels."""


def nodes(name: str) -> dict[str, bool]:
    """Return a network's nodes in order, and of each whether it is a residual block that keeps its input's shape."""
    side = 224 if name in {"vit_h_14", "maxvit_t"} else SIDE
    options = PieceOptions.__new__(PieceOptions)
    for key, value in {"network": name, "classes": 2, "sides": (side, side), "arguments": {}, "node": ""}.items():
        object.__setattr__(options, key, value)
    network = cut_network(options)
    streams: tuple[torch.Tensor, ...] = (torch.empty(2, 3, side, side, device="meta"),)
    found = {}
    for key, piece in network.parts.items():
        outputs = _run(network, key, streams)
        same = [one.shape for one in outputs] == [one.shape for one in streams]
        found[key] = same and adds_its_input(network.held.module, piece)
        streams = outputs
    return found


def _run(network: CutNetwork, key: str, streams: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    owner = nn.Module()
    with torch.device("meta"), torch.no_grad():
        forward = copy_part(owner, network, network.parts[key])
        return forward(owner, *streams)


def adds_its_input(network: nn.Module, piece: Part) -> bool:
    """Return whether a piece is one block that adds its input to a function of it, in its first addition at least."""
    if len(piece.operations) != 1 or piece.operations[0].op != "call_module":
        return False
    block = network.get_submodule(str(piece.operations[0].target))
    try:
        inside = fx.symbolic_trace(block)
    except (fx.proxy.TraceError, TypeError):
        return False
    adds = {operator.add, operator.iadd, torch.add}
    return any(
        node.target in adds and any(one.op == "placeholder" for one in node.all_input_nodes)
        for node in inside.graph.nodes
    )


def main() -> None:
    """Write the table."""
    names = sorted(models.list_models(module=models))
    table = {name: nodes(name) for name in names}
    lines = [f"  {json.dumps(name)}: {json.dumps(made, separators=(',', ':'))}" for name, made in table.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(table)} networks, {sum(map(len, table.values()))} nodes")


if __name__ == "__main__":
    main()
