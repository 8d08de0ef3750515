"""A network cut into nodes computes what torchvision's does, bit for bit, and learns what plain autograd learns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from petra_graph_modules.cutting import CannotCut
from petra_graph_modules.cutting.deferred_values import carry_out
from petra_graph_torchvision import architectures, table
from petra_graph_torchvision.blocks import NetworkHead, NetworkPiece
from petra_graph_torchvision.cutting import traced
from petra_graph_torchvision.declared import PieceOptions
from petra_graph_torchvision.networks import cut_network
from torch import Tensor, nn
from torchvision import models

from petra_graph.plugins import DataFacts

WITHOUT_AUXILIARY = {"aux_logits": False, "init_weights": True}
SMALL: dict[str, tuple[int, dict[str, Any]]] = {
    "alexnet": (64, {}),
    "convnext_tiny": (32, {}),
    "densenet121": (32, {}),
    "efficientnet_b0": (32, {}),
    "googlenet": (32, WITHOUT_AUXILIARY),
    "inception_v3": (75, WITHOUT_AUXILIARY),
    "mnasnet0_5": (32, {}),
    "mobilenet_v3_small": (32, {}),
    "regnet_y_400mf": (32, {}),
    "resnet18": (32, {}),
    "shufflenet_v2_x0_5": (32, {}),
    "squeezenet1_1": (32, {}),
    "swin_t": (32, {}),
    "vit_b_32": (32, {"image_size": 32}),
}
"""A network of each family, with a small image and the arguments that this package gives to torchvision."""
LARGE = {"alexnet", "convnext_tiny", "densenet121", "inception_v3", "vit_b_32"}


def blocks_of(name: str, side: int) -> dict[str, NetworkPiece | NetworkHead]:
    """Build all nodes, each from the shapes that the one before it returns."""
    options = architectures.ArchitectureOptions(network=name)
    facts = DataFacts(shape=(3, side, side), classes=10)
    made: dict[str, NetworkPiece | NetworkHead] = {}
    with torch.device("meta"):
        streams: tuple[Tensor, ...] = (torch.empty(2, 3, side, side),)
    for node in architectures.torchvision(options, facts):
        piece = PieceOptions(**{**node.options, "sides": tuple(node.options["sides"])})
        cls = NetworkHead if node.block == "torchvision-head" else NetworkPiece
        shapes = [tuple(stream.shape[1:]) for stream in streams]
        made[node.name] = cls(shapes, piece)
        with torch.device("meta"), torch.no_grad():
            streams = cls(shapes, piece)(*streams)
    return made


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LARGE else []) for name in SMALL]
)
def test_the_nodes_together_are_the_network_bit_for_bit(name: str) -> None:
    side, arguments = SMALL[name]
    blocks = blocks_of(name, side)
    network = models.get_model(name, weights=None, num_classes=10, **arguments)
    weights = {key: value for block in blocks.values() for key, value in block.state_dict().items()}
    own = network.state_dict()
    assert own.keys() == weights.keys()
    own.update(weights)  # in place, since MNASNet wants the metadata of its own
    network.load_state_dict(own)
    images = torch.rand(2, 3, side, side)
    for train in (False, True):
        torch.manual_seed(3)
        with torch.no_grad():
            expected = network.train(train)(images)
        torch.manual_seed(3)
        streams: tuple[Tensor, ...] = (images,)
        with torch.no_grad():
            for block in blocks.values():
                streams = block.train(train)(*streams)
        assert torch.equal(streams[0], expected), f"train = {train}"
        assert expected.isfinite().all()


def test_grey_images_are_repeated_and_images_resized() -> None:
    options = PieceOptions(network="resnet18", node="conv1", classes=10, sides=(32, 32))
    block = NetworkPiece([(1, 8, 8)], options).eval()
    image = torch.rand(2, 1, 8, 8)
    colours = nn.functional.interpolate(image.repeat(1, 3, 1, 1), (32, 32), mode="bilinear", antialias=True)
    with torch.no_grad():
        torch.testing.assert_close(block(image), block(colours))


@pytest.mark.parametrize("name", ["swin_t", "convnext_tiny", "googlenet", "resnet18"])
def test_values_are_drawn_as_torchvision_draws_them(name: str) -> None:
    """A tensor's first two moments, or its very values where nothing is random."""
    torch.manual_seed(0)
    arguments = SMALL[name][1]
    network = models.get_model(name, weights=None, num_classes=10, **arguments)
    options = PieceOptions(network=name, node="", classes=10, sides=(32, 32))
    held = cut_network(options).held
    tensors = held.module.state_dict(keep_vars=True)
    for key, expected in network.state_dict().items():
        if id(tensors[key]) not in held.steps:
            assert torch.equal(tensors[key], expected), key
            continue
        drawn = torch.empty_like(expected)
        carry_out(held.steps[id(tensors[key])], drawn)
        if expected.numel() > 1000:
            assert drawn.std().item() == pytest.approx(expected.std().item(), rel=0.15), key
            assert drawn.mean().item() == pytest.approx(0.0, abs=0.15 * expected.std().item()), key
        assert not torch.equal(drawn, expected) or not expected.std() > 0, key


def test_the_table_is_that_of_the_installed_torchvision() -> None:
    assert set(table.networks()) == set(models.list_models(module=models))
    for name in SMALL:
        options = PieceOptions(network=name, node="", classes=10, sides=(32, 32))
        assert list(cut_network(options).parts) == list(table.nodes(name))


class Branching(nn.Module):
    """A forward that depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the image, or its negative."""
        return x if x.sum() > 0 else -x


def test_a_network_that_cannot_be_cut() -> None:
    with pytest.raises(CannotCut, match="depends on values"):
        traced(Branching())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node": "layer9"}, "resnet18 has no node 'layer9'; it has conv1, layer1.0"),
        ({"arguments": {"wdith": 3}}, "torchvision's resnet18 does not take these arguments: .*wdith"),
        ({"arguments": {"num_classes": 3}}, "arguments cannot have num_classes"),
        ({"network": "vit_b_32", "node": "conv_proj", "sides": (32, 64)}, "vit_b_32 reads square images"),
    ],
)
def test_options_that_make_no_piece(changes: Mapping[str, Any], message: str) -> None:
    given = {"network": "resnet18", "node": "fc", "classes": 10, "sides": (32, 32)}
    with pytest.raises(ValueError, match=message):
        NetworkPiece([(3, 32, 32)], PieceOptions(**{**given, **changes}))


def test_the_table_has_each_node_once() -> None:
    path = Path(table.__file__).with_name("nodes.json")
    pairs: list[tuple[str, Any]] = json.loads(path.read_text(), object_pairs_hook=lambda found: found)
    for name, nodes in pairs:
        assert len(dict(nodes)) == len(nodes) > 1, name
