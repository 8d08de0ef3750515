"""A network of several named inputs, by its parts: two towers, trained on any number of processes, evaluated, and asked for predictions."""

from __future__ import annotations

import importlib
import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.training.prepared_run import prepare
from tests.support import ROOT
from tests.support.forks import ended, ranks
from tests.support.pages import Page, files_of
from tests.support.runs import only_run, weights_bytes, without_times

SHOWN = files_of(Page(ROOT / "plugins" / "guide" / "several_inputs.md"))
ROWS = 4


@pytest.fixture
def spec(here, write):
    for name in ("two_inputs.py", "two_towers.py"):
        write(name, SHOWN[name])
        sys.modules.pop(name.removesuffix(".py"), None)
    importlib.invalidate_caches()
    return write("two_towers.toml", SHOWN["two_towers.toml"])


@pytest.fixture
def samples():
    generator = torch.Generator().manual_seed(0)
    return {
        "image": torch.randint(256, (ROWS, 1, 4, 4), dtype=torch.uint8, generator=generator),
        "numbers": torch.randn(ROWS, 3, generator=generator),
    }


def test_the_towers_are_branches(spec):
    assert [node.inputs for node in prepare(spec).network.graph.nodes.values()] == [
        ("input",),
        ("of_numbers",),
        ("of_numbers", "of_image"),
    ]


def test_a_run_computes_what_the_module_computes(spec, samples, capsys):
    assert main(["run", spec]) == 0
    capsys.readouterr()
    assert main(["evaluate", "latest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["means"] == pg.Run(only_run()).summary["test"]
    plain = importlib.import_module("two_towers").Towers()
    parts = load_file(only_run() / "weights.safetensors")
    plain.load_state_dict({name.partition("/")[2]: tensor for name, tensor in parts.items()})
    expected = plain(numbers=samples["numbers"], image=samples["image"] / 255)
    assert torch.equal(pg.load(only_run())(samples), expected)
    np.savez("rows.npz", **{name: tensor.numpy() for name, tensor in samples.items()})
    assert main(["predict", "latest", "rows.npz", "--json"]) == 0
    predicted = [row["classes"][0] for row in json.loads(capsys.readouterr().out)]
    assert [one["class"] for one in predicted] == expected.argmax(1).tolist()
    assert [one["score"] for one in predicted] == pytest.approx(expected.softmax(1).amax(1).tolist())
    assert main(["export", "latest", "--format", "safetensors"]) == 0


@pytest.mark.processes
@pytest.mark.slow
def test_two_processes_change_no_bit(spec):
    assert main(["run", spec, "--set", "run.directory=one"]) == 0
    with ranks(*[["run", spec, "--set", "run.directory=two", "--set", "data.workers=1"]] * 2) as running:
        assert ended(running) == [0, 0]
    one, two = only_run("one"), only_run("two")
    assert (weights_bytes(one), without_times(one)) == (weights_bytes(two), without_times(two))


def test_inputs_in_a_tuple_are_read_in_their_order(spec, write):
    renamed = SHOWN["two_inputs.py"].replace('{"image": image, "numbers": numbers}, int', "(numbers, image), int")
    write("two_inputs.py", renamed)
    assert main(["run", spec, "--set", "run.epochs=1"]) == 0
    assert list(pg.load(only_run()).facts.inputs) == ["x0", "x1"]
