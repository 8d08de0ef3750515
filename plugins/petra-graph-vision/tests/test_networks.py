"""torchvision's networks by their parts: the bits of torchvision itself, coupled residual blocks, and what is refused."""

import sys

import pytest
import torch
from petra_graph_vision.networks import build
from safetensors.torch import load_file
from torchvision import models
from torchvision.models import _api

import petra_graph as pg
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.network import measure
from petra_graph.training.data import order
from petra_graph.training.trials import compare_parts

STEPS, UPDATES, BATCH, SIDE, CLASSES = 25, 4, 4, 32, 10
HERE = "images_of_this_test"
"""A name by which the Dataset is found: that of this module has a hyphen."""
sys.modules[HERE] = sys.modules[__name__]


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(1, SIDE, SIDE, generator=generator), index % CLASSES


def spec_of(network, side=SIDE, options=None, **tables):
    return pg.make_spec(
        architecture={"name": "torchvision", "options": {"network": network, **(options or {})}},
        **{
            "data": {"name": "random", "batch": 4, "options": {"shape": [1, side, side], "train": 8, "test": 4}},
            "method": {"name": "backprop"},
            "partition": {"stages": 1},
            **tables,
        },
    )


def test_the_steps_of_resnet18_are_those_of_torchvision(here):
    torch.manual_seed(3)
    network = build("resnet18", CLASSES, (SIDE, SIDE))
    torch.save(network.state_dict(), "begun.pt")
    plain = {"lr": 0.01, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0}
    spec = spec_of(
        "resnet18",
        data={
            "name": "torch",
            "batch": BATCH,
            "options": {**dict.fromkeys(("train", "test"), f"{HERE}:Images"), "classes": CLASSES},
        },
        optimizer={"name": "sgd", "options": plain},
        lr_schedule={"name": "constant"},
        precision={"memory_format": "contiguous"},
        init={"weights": "begun.pt"},
        run={"epochs": 1, "micro_batches": UPDATES},
    )
    data, orders = Images(), order(STEPS * BATCH, seed=0, epoch=0).reshape(STEPS, BATCH)
    run = pg.train(spec)
    optimizer = torch.optim.SGD(network.train().parameters(), 0.01, momentum=0.9)
    for indices in orders[:UPDATES]:
        x, y = zip(*(data[int(index)] for index in indices), strict=True)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(torch.stack(x)), torch.tensor(y)).backward()
        optimizer.step()
    found = {key.partition("/")[2]: one for key, one in load_file(run.directory / "weights.safetensors").items()}
    assert not [key for key, one in network.state_dict().items() if not torch.equal(found[key], one)]


@pytest.fixture
def vit_small(monkeypatch):
    """A transformer of torchvision's class: its smallest one takes seconds to draw."""

    def made(*, image_size, weights, **more):
        return models.VisionTransformer(image_size, 16, 2, 2, 16, 32, **more)

    made.__module__ = "torchvision.models.vision_transformer"
    monkeypatch.setitem(_api.BUILTIN_MODELS, "vit_small", made)


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
    network = measure(check_spec(spec_of("resnet34", options={"coupling": "dual-residual"}))).graph.nodes
    reversible = [name for name, node in network.items() if node.kind == "reversible"]
    assert reversible == [f"layer1.{at}" for at in range(3)] + [f"layer2.{at}" for at in range(1, 4)] + [
        f"layer3.{at}" for at in range(1, 6)
    ] + [f"layer4.{at}" for at in range(1, 3)]
    assert network["layer1.0"].block == "dual-residual-entry"
