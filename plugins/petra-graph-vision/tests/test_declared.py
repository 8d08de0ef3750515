"""Declarations: what a specification is checked with, before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
from petra_graph_vision import declared

from petra_graph.kinds.data_facts import DataFacts
from tests.support import runs as small

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SPEC = (
    small.SPEC.replace('"digits"', '"image-folder"')
    .replace("{ crop_padding = 1 }", '{ root = "ROOT", size = 8 }')
    .replace("{ outputs = 10 }", "{ outputs = 2 }")
    .replace("batch = 128", "batch = 4")
)


@pytest.mark.processes
def test_declarations_import_neither_torch_nor_numpy():
    code = "import sys, petra_graph_vision.declared; print(sorted({'torch', 'numpy', 'torchvision', 'PIL'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("declaration", "options", "facts"),
    [
        (
            declared.CIFAR10,
            declared.Cifar10Options(root="."),
            DataFacts(
                shape=(3, 32, 32),
                classes=10,
                mean=(0.4914, 0.4822, 0.4465),
                std=(0.2470, 0.2435, 0.2616),
                class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
            ),
        ),
        (
            declared.CIFAR100,
            declared.Cifar100Options(root="."),
            DataFacts(shape=(3, 32, 32), classes=100, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
        ),
        (
            declared.FASHION_MNIST,
            declared.FashionMnistOptions(root="."),
            DataFacts(
                shape=(1, 28, 28),
                classes=10,
                mean=(0.2860,),
                std=(0.3530,),
                class_names=(
                    "t-shirt/top",
                    "trouser",
                    "pullover",
                    "dress",
                    "coat",
                    "sandal",
                    "shirt",
                    "sneaker",
                    "bag",
                    "ankle-boot",
                ),
            ),
        ),
        (
            declared.IMAGENET32,
            declared.ImageNet32Options(root="."),
            DataFacts(shape=(3, 32, 32), classes=1000, mean=(0.4811, 0.4575, 0.4078), std=(0.2605, 0.2533, 0.2683)),
        ),
        (
            declared.IMAGENET,
            declared.ImageNetOptions(root=".", size=192, classes=100),
            DataFacts(shape=(3, 192, 192), classes=100, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        ),
        (
            declared.IMAGE_FOLDER,
            declared.ImageFolderOptions(root=".", size=48),
            DataFacts(shape=(3, 48, 48), classes=None, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        ),
    ],
)
def test_facts_follow_from_the_options_alone(declaration, options, facts):
    assert facts == declaration.facts(options)


@pytest.mark.parametrize(
    ("message", "options", "values"),
    [
        ("resize must be at least size", declared.ImageNetOptions, {"root": ".", "size": 288}),
        ("mean must have 3 items", declared.Cifar10Options, {"root": ".", "mean": (0.5,)}),
    ],
)
def test_options_out_of_range_or_contradictory_are_refused(message, options, values):
    with pytest.raises(ValueError, match=message):
        options(**values)
