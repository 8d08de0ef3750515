"""Modules and data of one's own: Datasets and streams train as they are, and any number of processes and of loaders gives the same bits."""

import ast
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import petra_graph as pg
from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.forks import alone, ended
from tests.support.pages import Page, files_of
from tests.support.runs import only_run

ROWS = [f"{x:.3f},{y:.3f},{int(x * y > 0)}\n" for x, y in np.random.default_rng(0).normal(size=(170, 2))]
FILES = files_of(Page(ROOT / "plugins" / "guide" / "data_sets.md")) | {
    "train.csv": "".join(ROWS[:150]),
    "test.csv": "".join(ROWS[150:]),
}
"""The page's examples, with files of 150 and of 20 rows."""

MODULE = '''
import random

import numpy as np
import torch
from torch import nn


class Noisy(torch.utils.data.Dataset):
    """Draws from all three generators."""

    def __init__(self, length=96):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        x = torch.randn(1, 6, 6) + random.random() + float(np.random.normal())
        return x, index % 3


TEST = Noisy(24)


def layers(channels):
    return nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.Dropout(0.3))
'''
SPEC = """
name = "own"
[[graph.node]]
name = "stem"
block = "own:layers"
options = { channels = 4 }
[[graph.node]]
name = "flat"
block = "torch.nn:Flatten"
[[graph.node]]
name = "head"
block = "torch.nn:Linear"
kind = "head"
options = { in_features = 144, out_features = 3 }
[method]
schedule = "1f1b"
[data]
name = "torch"
batch = 16
options = { train = "own:Noisy", test = "own:TEST", classes = 3 }
[run]
epochs = 2
"""


@pytest.fixture
def spec(write):
    write("own.py", MODULE)
    return write("own.toml", SPEC)


def test_the_ten_statements_of_the_page_train(here, write):
    page = FILES["quadrants.py"]
    statements = [one for one in ast.walk(ast.parse(page)) if isinstance(one, ast.stmt)]
    assert len([one for one in statements if not isinstance(one, ast.Import | ast.ImportFrom)]) == 10
    done = runpy.run_path(write("quadrants.py", page), run_name="__main__")["run"]
    assert done.summary["test"]["top1"] > 0.7  # chance is 0.5


def test_the_spec_of_the_page_is_the_same_run(here, write, monkeypatch):
    """Its names of nodes apart, by which parameters are drawn; and it is found again from elsewhere."""
    write("quadrants.py", FILES["quadrants.py"].partition("run = ")[0])
    assert main(["run", write("quadrants.toml", FILES["quadrants.toml"])]) == 0
    directory = only_run().absolute()
    sys.modules.pop("quadrants")
    monkeypatch.chdir("/")
    assert pg.open_run(directory).summary["test"]["top1"] > 0.7
    assert pg.open_run(directory).evaluate().means == pg.open_run(directory).summary["test"]
    ahead, across = pg.open_run(directory).predict(np.array([[0.9, 0.9], [-0.9, 0.9]], np.float32), top=1)
    assert (ahead.best[0].name, across.best[0].name) == ("like signs", "unlike signs")


@pytest.fixture
def folder(here, write):
    for name, text in FILES.items():
        write(name, text)
    return here


@pytest.mark.processes
def test_a_stream_of_which_each_rank_has_rows_of_its_own_is_refused(folder):
    """As loaders for data parallelism do: labels were those of other rows than the first stage had read."""
    own = "[torch.distributed.is_initialized() and torch.distributed.get_rank() :: 1 + torch.distributed.is_initialized()]"
    text = FILES["rows.py"].replace("import torch\n", "import torch\nimport torch.distributed\n", 1)
    Path("rows.py").write_text(text.replace("for line in lines:", f"for line in list(lines){own}:"))
    with alone("run", "rows.toml", "--set", "partition.stages=2", "--processes", "2") as running:
        assert ended([running]) == [1], running.said
    assert "the first training sample follows the process's rank" in running.said


CODE = "import itertools\n\nNUMBERS = itertools.cycle(range(31))\n"
BAD_ROW = "1,2,x\n"


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (("rows.toml", "micro_batches = 7\n", ""), 2, "set the number of micro-batches of an epoch"),
        (("rows.py", "random.randrange(32)", "next(NUMBERS)"), 2, "is another one when it is read again"),
        (("train.csv", "", BAD_ROW), 1, "of pass 0 of the training stream: ValueError: invalid literal for int()"),
    ],
)
def test_what_cannot_be_read_as_a_stream(folder, capsys, change, code, reason):
    """Some of it is known before the run; a row that cannot be read is named where it is read."""
    file, old, new = change
    text = Path(file).read_text()
    assert old in text
    bent = text.replace(old, new) if old else f"{text}{new}"
    Path(file).write_text(CODE + bent if "NUMBERS" in new else bent)
    assert main(["run", "rows.toml"]) == code
    said = capsys.readouterr().err
    assert reason in said
    assert "Traceback" not in said
