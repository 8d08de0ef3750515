"""Whether each network's nodes together are the network, bit for bit, in evaluation and in training: all names, small images.

python plugins/petra-graph-torchvision/tools/equality.py
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import torch
from petra_graph_modules.cutting.deferred_values import DeferredValues
from petra_graph_torchvision import architectures, table
from petra_graph_torchvision.blocks import NetworkHead, NetworkPiece
from petra_graph_torchvision.declared import PieceOptions
from petra_graph_torchvision.networks import build_and_cut
from torch import Tensor
from torchvision import models

from petra_graph.plugins import DataFacts
from petra_graph.record.run_directory import environment

RESULTS = Path(__file__).parent.parent / "results" / "equality.json"
SIDES = {"alexnet": 64, "inception_v3": 75, "maxvit_t": 224, "vit_h_14": 28}
WITHOUT_AUXILIARY = {"aux_logits": False, "init_weights": True}


@click.command()
@click.argument("names", nargs=-1)
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
def main(names: tuple[str, ...], output: Path) -> None:
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in names or table.networks():
        side = SIDES.get(name, 32)
        row = {"network": name, "side": side, "nodes": len(table.nodes(name)), **compared(name, side)}
        rows.append(row)
        click.echo(f"{name:24} {row['nodes']:4} nodes  {'equal' if row['eval'] and row['train'] else 'DIFFERENT'}")
        build_and_cut.cache_clear()
        write(rows, output)
    click.echo(f"{sum(row['eval'] and row['train'] for row in rows)} of {len(rows)} are equal")


def write(rows: list[dict[str, Any]], output: Path) -> None:
    """Write what has been compared so far."""
    setting = {key: value for key, value in environment().items() if key != "command"}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    output.write_text(json.dumps({"date": now, "rows": rows, "environment": setting}, indent=1) + "\n")


def compared(name: str, side: int) -> dict[str, bool]:
    """Return whether outputs and running statistics are equal, in evaluation and in training."""
    options = architectures.ArchitectureOptions(network=name)
    nodes = architectures.torchvision(options, DataFacts(shape=(3, side, side), classes=10))
    images = torch.rand(2, 3, side, side)
    blocks: list[NetworkPiece | NetworkHead] = []
    streams: tuple[Tensor, ...] = (images,)
    with torch.no_grad():
        for node in nodes:
            cls = NetworkHead if node.block == "torchvision-head" else NetworkPiece
            piece: Any = PieceOptions(**{**node.options, "sides": tuple(node.options["sides"])})
            blocks.append(cls([tuple(stream.shape[1:]) for stream in streams], piece).eval())
            streams = blocks[-1](*streams)
    with DeferredValues():
        network = models.get_model(name, weights=None, num_classes=10, **_arguments(name, side))
    own = network.state_dict()
    own.update({key: value for block in blocks for key, value in block.state_dict().items()})
    network.load_state_dict(own)
    found = {}
    for train in (False, True):
        torch.manual_seed(3)
        with torch.no_grad():
            expected = network.train(train)(images)
        torch.manual_seed(3)
        streams = (images,)
        with torch.no_grad():
            for block in blocks:
                streams = block.train(train)(*streams)
        found["train" if train else "eval"] = torch.equal(streams[0], expected)
    return found


def _arguments(name: str, side: int) -> dict[str, Any]:
    if name in {"googlenet", "inception_v3"}:
        return WITHOUT_AUXILIARY
    if name.startswith("vit_"):
        return {"image_size": side}
    return {"input_size": (side, side)} if name.startswith("maxvit_") else {}


if __name__ == "__main__":
    main()
