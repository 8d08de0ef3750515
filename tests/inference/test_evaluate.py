"""Evaluations of saved runs."""

from __future__ import annotations

import json

import pytest

from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.inference.saved_run import evaluate_run
from petra_graph.inference.saved_run import SavedRun
from petra_graph.training.prepare import prepare
from tests.support.runs import SPEC, only_run, summary_of


def test_it_gives_the_run_s_own_numbers(trained, opened):
    found = evaluate_run(opened)
    assert found.samples == 40
    assert found.means == summary_of(trained)["test"]
    assert str(found).startswith("test loss ")
    assert "undefined" not in str(found)


@pytest.mark.parametrize("setting", ["compute=bfloat16", "buffer_dtype=int8"])
def test_in_every_precision(write, setting):
    assert main(["run", write("small.toml", SPEC), "--set", f"precision.{setting}"]) == 0
    assert evaluate_run(SavedRun.open("latest")).means == summary_of(only_run())["test"]


def test_other_data(trained):
    other = evaluate_run(SavedRun.open(trained, ["data.options.test=7", "data.options.train=2000"]))
    assert other.samples == 7
    with pytest.raises(SpecError, match=r"reads samples uint8 \[3, 8, 6\], and the data has uint8 \[3, 8, 8\]"):
        evaluate_run(SavedRun.open(trained, ["data.options.shape=[3,8,8]"]))


FRUIT = """
import torch


class Fruit:
    # Apples and pears, told apart by the place of a one.

    classes = ["apple", "pear"]

    def __len__(self):
        return 64

    def __getitem__(self, index):
        kind = ("apple", "pear")[index % 2]
        return torch.eye(2)[index % 2], self.classes.index(kind)


class Swapped(Fruit):
    classes = ["pear", "apple"]
"""


def test_classes_are_matched_by_their_names(write, capsys):
    """The same classes in another order had 0 % right, and other ones too, without a word."""
    write("fruit.py", FRUIT)
    spec = """
    data = { name = "torch", batch = 8, options = { train = "fruit:Fruit", test = "fruit:Fruit", classes = ["apple", "pear"] } }
    optimizer = { options = { lr = 0.5 } }
    run = { epochs = 3 }
    [[graph.node]]
    name = "head"
    block = "pool-linear"
    options = { outputs = 2 }
    """
    assert main(["run", write("fruit.toml", spec)]) == 0
    others = ["data.options.train=fruit:Swapped", "data.options.test=fruit:Swapped"]
    found = evaluate_run(SavedRun.open("latest", [*others, 'data.options.classes=["pear", "apple"]']))
    assert (found.means["top1"], found.means["loss"]) == (
        1.0,
        pytest.approx(evaluate_run(SavedRun.open("latest")).means["loss"]),
    )
    with pytest.raises(SpecError, match="the run's classes are apple, pear, and those of the data plum, apple"):
        evaluate_run(SavedRun.open("latest", [*others, 'data.options.classes=["plum", "apple"]']))


def test_the_command(trained, capsys):
    assert main(["evaluate", str(trained), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["means"] == summary_of(trained)["test"]
    assert main(["evaluate", str(trained), "--weights", "latest"]) == 0
    assert "   40 samples, weights of " in capsys.readouterr().out
    assert main(["evaluate", str(trained), "--set", "data.batchh=3"]) == 2
    assert "did you mean 'batch'?" in capsys.readouterr().err


def test_a_part_of_the_data_is_spread_over_all_of_it(write, capsys):
    sets = ("--set", "run.evaluation_batches=2", "--set", "data.evaluation_batch=8")
    assert main(["run", write("small.toml", SPEC), *sets, "--set", "data.workers=1"]) == 0
    said = capsys.readouterr()
    assert said.err.count("(16 of 359 samples)") == 2
    assert " (16 of 359 samples)\n" in said.out
    assert evaluate_run(SavedRun.open("latest", sets[1::2])).means == summary_of(only_run())["test"]
    (rows,) = prepare("small.toml", ["data.evaluation_batch=16"]).opened.evaluation(range(359), 1).parts
    assert rows.tolist() == sorted(rows.tolist())
    assert rows.min() < 60
    assert rows.max() >= 300
