"""What a run is made of has digests: each change of code or data changes one, and what does not belong to the run changes none."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from petra_graph.training.prepared_run import prepare
from petra_graph.training.record.digests import list_changes

FOLDERS = """\
[architecture]
name = "module"
options = { build = "net:Net" }
[data]
name = "image-folder"
batch = 4
options = { root = "photos", size = 8, cache = CACHE }
[run]
"""
NET = """\
from torch import nn
from parts.layers import WIDTH, layer

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(192, WIDTH), layer(), nn.Linear(WIDTH, 3))
"""
LAYERS = """\
from torch import nn
from . import widths

WIDTH = widths.WIDTH

def layer():
    return nn.ReLU()
"""


def write_image(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def spec(write):
    """Three classes of six images to train with, and of two for the test."""
    write("net.py", NET)
    write("parts/__init__.py", "")
    write("parts/layers.py", LAYERS)
    write("parts/widths.py", "WIDTH = 8\n")
    write("unrelated.py", "")
    for part, many in (("train", 6), ("test", 2)):
        for place, name in enumerate(("ant", "bee", "cat")):
            for number in range(many):
                write_image(Path("photos") / part / name / f"{number}.png", 100 * place + number)
    return write("small.toml", FOLDERS.replace("CACHE", "false"))


def exchange(one, other):
    Path(one).rename("between")
    Path(other).rename(one)
    Path("between").rename(other)


def append(path, text):
    Path(path).write_text(Path(path).read_text() + text)


CODE = "the code of {}".format
CHANGES = {
    "the network": (lambda: append("net.py", "#\n"), CODE("net")),
    "what it imports": (lambda: append("parts/layers.py", "#\n"), CODE("parts.layers")),
    "what that imports": (lambda: append("parts/widths.py", "#\n"), CODE("parts.widths")),
    "two classes exchanged": (
        lambda: exchange("photos/test/ant", "photos/test/bee"),
        "the bytes of some test files",
    ),
    "a file replaced": (
        lambda: write_image(Path("photos/train/bee/4.png"), 7),
        "the bytes of some training files",
    ),
    "a file less": (lambda: Path("photos/train/cat/5.png").unlink(), "the number of training samples"),
    "a file renamed": (
        lambda: Path("photos/test/cat/1.png").rename("photos/test/cat/9.png"),
        "the names and sizes of the test files",
    ),
    "a label": (
        lambda: Path("photos/test/ant/0.png").rename("photos/test/bee/7.png"),
        "the labels of the test samples",
    ),
    "a class renamed, so that labels shift": (
        lambda: [Path(f"photos/{part}/ant").rename(f"photos/{part}/dog") for part in ("train", "test")],
        "the names and sizes of the training files",
    ),
}
"""One after the other."""


def test_each_change_is_named(spec):
    before = prepare(spec).digests
    for name, (change, told) in CHANGES.items():
        change()
        after = prepare(spec).digests
        assert any(text.startswith(f"{told}: ") for text in list_changes(before, after)), name
        before = after


def test_what_is_no_part_of_the_run_changes_nothing(spec, write):
    before = prepare(spec).digests
    assert {key for key in before if key.startswith("the code")} == {
        CODE(name) for name in ("net", "parts", "parts.layers", "parts.widths")
    }
    append("unrelated.py", "#\n")
    shutil.move("photos", "elsewhere")
    other = prepare(write("small.toml", FOLDERS.replace("CACHE", "true").replace("photos", "elsewhere"))).digests
    assert list_changes(before, other) == [], "the same files in another folder, and in memory"
