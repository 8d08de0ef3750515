"""torchvision's networks by their parts: the bits of torchvision itself, coupled residual blocks, and what is refused."""

import pytest
import torch

import petra_graph as pg
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.network import measure
from petra_graph.training.trials import compare_parts


def spec_of(network, side=32, **options):
    return pg.make_spec(
        architecture={"name": "torchvision", "options": {"network": network, **options}},
        data={"name": "random", "batch": 4, "options": {"shape": [1, side, side], "train": 8, "test": 4}},
        method={"name": "backprop"},
        partition={"stages": 1},
    )


@pytest.fixture
def vit_small(monkeypatch):
    """A transformer of torchvision's class: its smallest one takes seconds to draw."""
    from torchvision import models

    def made(*, image_size, weights, **more):
        return models.VisionTransformer(image_size, 16, 2, 2, 16, 32, **more)

    made.__module__ = "torchvision.models.vision_transformer"
    monkeypatch.setitem(models._api.BUILTIN_MODELS, "vit_small", made)


@pytest.mark.usefixtures("vit_small")
@pytest.mark.parametrize(
    ("network", "side", "nodes"), [("mobilenet_v3_small", 32, 15), ("squeezenet1_1", 64, 10), ("vit_small", 32, 4)]
)
def test_parts_are_the_network(network, side, nodes):
    measured = measure(check_spec(spec_of(network, side)))
    assert len(measured.graph.nodes) == nodes
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4, 1, side, side), dtype=torch.uint8, generator=generator)
    compare_parts(measured, measured.checked.facts, images)


def test_residual_blocks_are_coupled():
    network = measure(check_spec(spec_of("resnet34", coupling="dual-residual"))).graph.nodes
    reversible = [name for name, node in network.items() if node.kind == "reversible"]
    assert reversible == [f"layer1.{at}" for at in range(3)] + [f"layer2.{at}" for at in range(1, 4)] + [
        f"layer3.{at}" for at in range(1, 6)
    ] + [f"layer4.{at}" for at in range(1, 3)]
    assert network["layer1.0"].block == "dual-residual-entry"
