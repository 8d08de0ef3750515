"""One trained run, which all tests of this folder open."""

from __future__ import annotations

from contextlib import chdir

import pytest

from petra_graph.cli.main import main
from petra_graph.inference.saved_run import SavedRun
from tests.support.runs import only_run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The directory of a run: convolutions with running statistics, an input that is not quadratic, an epoch of noise."""
    folder = tmp_path_factory.mktemp("inference")
    (folder / "net.toml").write_text(NETWORK)
    with chdir(folder):
        assert main(["run", "net.toml"]) == 0
    return only_run(folder / "runs")


@pytest.fixture
def opened(trained):
    return SavedRun.open(trained)


NETWORK = """\
[[graph.node]]
name = "stem"
block = "conv-stem"
options = { channels = 4 }
[[graph.node]]
name = "layer"
block = "rev-basic"
repeat = 2
[[graph.node]]
name = "down"
block = "down-basic"
options = { channels = 8, stride = 2 }
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }
[checkpoint]
every = "1 epoch"
best = "test/loss"
[data]
name = "random"
batch = 16
evaluation_batch = 24
options = { shape = [3, 8, 6], train = 64, test = 40 }
[run]
epochs = 2
"""
