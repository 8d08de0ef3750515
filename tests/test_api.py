"""The Python API: what the command line does, to the bit, with a network that no file describes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import petra_graph as pg
from petra_graph.blocks import AdditiveCoupling
from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from tests.support.runs import SPEC, only_run, weights_bytes, without_times


class Mine(AdditiveCoupling):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.linear = torch.nn.Linear(inputs[0][0], inputs[0][0])

    def residual(self, x):
        return self.linear(x).tanh()


class Rows:
    def __init__(self, samples):
        generator = np.random.default_rng(samples)
        self.values = torch.from_numpy(generator.normal(size=(samples, 2)).astype(np.float32))

    def __len__(self):
        return len(self.values)

    def fetch(self, indices, *, seed, epoch):
        rows = self.values[indices]
        return rows, (rows[:, 0] > 0).long()


class HalfPlane:
    """Points on two sides of a line."""

    facts = pg.DataFacts(shape=(2,), dtype="float32", classes=2, class_names=("left", "right"))

    def __init__(self):
        self.train, self.test = Rows(256), Rows(64)


def of_own_classes(**more):
    return pg.make_spec(
        nodes=[
            {"name": "stem", "block": "linear-stem", "options": {"features": 8}},
            {"name": "mine", "block": Mine, "repeat": 2},
            {"name": "head", "block": "pool-linear", "options": {"outputs": 2}},
        ],
        data={"name": HalfPlane, "batch": 16},
        run={"epochs": 2},
        **more,
    )


@pytest.fixture
def file(write):
    return write("small.toml", SPEC)


# --- specifications ---------------------------------------------------------------------------------------------------


def test_a_loaded_spec_can_be_changed(file):
    spec = pg.load_spec(file, {"run.epochs": 3}).replace({"method.name": "backprop", "graph.node.rev.repeat": 4})
    assert (spec.run.epochs, spec.method.name, spec.graph.node[1].repeat) == (3, "backprop", 4)
    assert spec.method.schedule is None, "a schedule belongs to its method"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run.epoch": 3}, r"""^changes\["run.epoch"\]: unknown key(.|\n)*did you mean 'epochs'"""),
        ({"run.epochs": "3"}, "run.epochs: must be an integer"),
        ({"data.options": {"a": [object()]}}, "data.options.a.0 cannot be an object of class object"),
        ({"graph.node.rev.block": Rows(3)}, "graph.node.rev.block cannot be an object of class Rows"),
    ],
)
def test_changes_that_are_wrong(file, changes, reason):
    with pytest.raises(SpecError, match=reason):
        pg.load_spec(file).replace(changes)


def test_a_class_stands_for_its_name_in_changes(file):
    assert pg.load_spec(file).replace({"data.name": HalfPlane}).data.name == f"{__name__}:HalfPlane"


@pytest.mark.parametrize(
    ("call", "reason"),
    [(lambda: pg.train("a.toml", "run.epochs=1"), r"changes are values by key, as in \{\"run.epochs\": 3\} \(got an")],
)
def test_what_is_no_specification_and_no_run(call, reason):
    with pytest.raises(TypeError, match=reason):
        call()


TRAIN = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))


def test_nodes_need_no_names():
    nodes = [
        {"block": torch.nn.Flatten},
        Mine,
        {"name": "own", "block": Mine},
        Mine,
        "rev-mlp",
        {"block": of_own_classes, "kind": "head"},
    ]
    spec = pg.make_spec(nodes, data=pg.from_torch(TRAIN, TRAIN))
    assert [node.name for node in spec.graph.node] == ["flatten", "mine", "own", "mine-2", "rev-mlp", "of_own_classes"]
    assert spec.graph.node[0].block == "torch.nn.modules.flatten:Flatten"


def test_problems_of_a_spec_made_in_code_are_all_told():
    with pytest.raises(SpecError) as caught:
        pg.make_spec(nodes=[{"name": "a", "blok": "x"}], data={"name": "digits", "batch": 0}, rum={})
    assert len(caught.value.problems) >= 3
    assert {str(problem.where) for problem in caught.value.problems} >= {'spec["graph.node.0.blok"]', 'spec["rum"]'}


# --- plans and runs ---------------------------------------------------------------------------------------------------


def test_a_run_has_the_command_line_s_bits(file, capsys):
    run = pg.train(pg.load_spec(file))
    assert main(["run", file, "--set", "run.directory=other"]) == 0
    assert weights_bytes(run.directory) == weights_bytes(only_run("other"))
    assert without_times(run.directory) == without_times(only_run("other"))
    assert (run.status, run.metrics("test/loss")[-1][1]) == ("done", run.summary["test"]["loss"])
    assert run.metrics("train/micro_batch_loss")


def test_a_network_and_data_of_own_classes(here):
    torch.set_num_threads(2)
    run = pg.train(of_own_classes())
    assert torch.get_num_threads() == 2, "a run has its own"
    torch.set_num_threads(1)
    assert run.evaluate().means == run.summary["test"]
    again = pg.train(of_own_classes(), {"run.epochs": 1, "checkpoint.every": "1 epoch"})
    assert weights_bytes(pg.train(resume=again, changes={"run.epochs": 2}).directory) == weights_bytes(run.directory)


# --- the module -------------------------------------------------------------------------------------------------------


def test_importing_it_imports_neither_torch_nor_numpy():
    code = (
        "import sys, petra_graph; print([m for m in ('torch', 'numpy', 'attrs') if m in sys.modules]); "
        "from petra_graph.plugins import Callback, NodeSpec, StageFacts; "
        "print([m for m in ('torch', 'numpy', 'networkx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n[]\n"
