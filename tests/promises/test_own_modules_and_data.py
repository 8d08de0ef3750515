"""A Dataset and modules of one's own: ten statements train, and any number of processes and of loaders gives the same bits."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import petra_graph as pg
from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.pages import Page, files_of
from tests.support.runs import only_run

SHOWN = files_of(Page(ROOT / "plugins" / "guide" / "data_sets.md"))
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
    page = SHOWN["quadrants.py"]
    statements = [one for one in ast.walk(ast.parse(page)) if isinstance(one, ast.stmt)]
    assert len([one for one in statements if not isinstance(one, ast.Import | ast.ImportFrom)]) == 10
    done = runpy.run_path(write("quadrants.py", page), run_name="__main__")["run"]
    assert done.summary["test"]["top1"] > 0.7  # chance is 0.5


def test_the_spec_of_the_page_is_the_same_run(here, write, monkeypatch):
    """Its names of nodes apart, by which parameters are drawn; and it is found again from elsewhere."""
    write("quadrants.py", SHOWN["quadrants.py"].partition("run = ")[0])
    assert main(["run", write("quadrants.toml", SHOWN["quadrants.toml"])]) == 0
    directory = only_run().absolute()
    sys.modules.pop("quadrants")
    monkeypatch.chdir("/")
    assert pg.open_run(directory).summary["test"]["top1"] > 0.7
    assert pg.open_run(directory).evaluate().means == pg.open_run(directory).summary["test"]
    ahead, across = pg.open_run(directory).predict(np.array([[0.9, 0.9], [-0.9, 0.9]], np.float32), top=1)
    assert (ahead.best[0].name, across.best[0].name) == ("like signs", "unlike signs")


def test_a_run_is_loaded_without_its_data(spec):
    assert main(["run", spec, "--set", "run.epochs=1"]) == 0
    text = MODULE.replace("TEST = ", "raise_if_read = ").replace("return self.length", "raise OSError('no files')")
    Path("own.py").write_text(text)
    sys.modules.pop("own", None)
    importlib.invalidate_caches()
    assert pg.load("latest").facts.classes == 3
