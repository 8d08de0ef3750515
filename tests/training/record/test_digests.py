"""What a run is made of has digests: a change of local code or of the data's facts changes one, and what is not the run's changes none."""

from __future__ import annotations

from pathlib import Path

from petra_graph.training.digests import list_changes
from petra_graph.training.prepare import prepare

SPEC = """\
[architecture]
name = "module"
options = { build = "net:Net" }
[data]
name = "torch"
batch = 4
options = { train = "net:ROWS", test = "net:ROWS", classes = ["a", "b"] }
"""
NET = """\
from torch import nn, tensor
from parts.layers import WIDTH, layer

ROWS = [(tensor([float(i)] * 4), i % 2) for i in range(8)]

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, WIDTH), layer(), nn.Linear(WIDTH, 2))
"""
LAYERS = "from torch import nn\nfrom . import widths\n\nWIDTH = widths.WIDTH\n\ndef layer():\n    return nn.ReLU()\n"


def told(before, after):
    return [text.partition(":")[0] for text in list_changes(before, after)]


def test_a_change_is_named(write):
    for name, text in {"net.py": NET, "parts/__init__.py": "", "parts/layers.py": LAYERS, "unrelated.py": ""}.items():
        write(name, text)
    write("parts/widths.py", "WIDTH = 8\n")
    spec = write("a.toml", SPEC)
    before = prepare(spec).digests
    for name in ("net.py", "parts/layers.py", "parts/widths.py"):
        Path(name).write_text(Path(name).read_text() + "#\n")
        after = prepare(spec).digests
        assert told(before, after) == ["local code"]
        before = after
    write("unrelated.py", "#\n")
    assert told(before, prepare(spec).digests) == []
    assert told(before, prepare(write("b.toml", SPEC.replace('"b"]', '"c"]'))).digests) == ["facts of the data"]
