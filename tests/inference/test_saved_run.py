"""Runs that can be opened, the weights that they have, and their evaluations."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.inference.saved_run import SavedRun, evaluate_run, open_data
from petra_graph.record import checkpoint
from petra_graph.training.prepare import prepare
from petra_graph.training.trained_network import Network
from tests.support.runs import SPEC, only_run, summary_of


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copy")


def weights(run: SavedRun, which: str | None = None):
    network, source = run.load(which)
    return network.state_dict(), source


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_killed_run_has_the_weights_of_its_latest_checkpoint(trained, copy):
    (copy / "weights.safetensors").unlink()
    found, source = weights(SavedRun.open(copy))
    assert source.endswith(f"checkpoints/{max(checkpoint.numbers(copy)):012d}")
    assert equal(found, weights(SavedRun.open(trained))[0])


def test_the_best_and_any_checkpoint(copy):
    run = SavedRun.open(copy)
    first, last = sorted(checkpoint.numbers(copy))
    assert not equal(weights(run, str(first))[0], weights(run, str(last))[0])
    losses = {at: checkpoint.read_manifest(copy, at).metrics["test/loss"] for at in (first, last)}
    assert weights(run, "best")[1].endswith(str(min(losses, key=losses.__getitem__)))


def test_weights_with_a_flipped_bit_are_refused_wherever_they_are_read(copy, tmp_path):
    """The digest is of the file that the run has written; a run of an earlier version has none."""
    file = copy / "weights.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    text = f"{file} is not what the run has written: its SHA-256 is another than in summary.json"
    for args in (["evaluate", str(copy)], ["export", str(copy), "--format", "torch-export"]):
        assert main(args) == 2, args
    with pytest.raises(SpecError, match=re.escape(text)):
        SavedRun.open(copy).load()
    for begin in (copy, file):
        assert main(["run", str(copy / "resolved.toml"), "--set", f"init.weights={begin}", "--dry-run"]) == 2
    summary = json.loads((copy / "summary.json").read_text())
    del summary["sha256"]
    (copy / "summary.json").write_text(json.dumps(summary))
    SavedRun.open(copy).load()


def test_a_damaged_checkpoint_is_passed_over(copy):
    (copy / "weights.safetensors").unlink()
    first, last = sorted(checkpoint.numbers(copy))
    next(checkpoint.folder_of(copy, last).glob("stage-*")).write_bytes(b"damaged")
    assert weights(SavedRun.open(copy))[1].endswith(str(first))
    with pytest.raises(SpecError, match=f"{last} is not used: stage-"):
        SavedRun.open(copy).load(str(last))


def test_weights_that_are_not_there(copy):
    resolved = copy / "resolved.toml"
    resolved.write_text(resolved.read_text().replace('best = "test/loss"\n', ""))
    run = SavedRun.open(copy)
    with pytest.raises(SpecError, match="has no weights 'best'"):
        run.load("best")
    with pytest.raises(SpecError, match="has no weights '7'") as error:
        run.load("7")
    with pytest.raises(SpecError, match="cannot compute on 'abacus'"):
        run.load(device="abacus")
    assert "the number of a checkpoint (4, 8)" in error.value.problems[0].hint


BLOCK = """\
from petra_graph.blocks import AdditiveCoupling

class Beside(AdditiveCoupling):
    def residual(self, x):
        return x.tanh()
"""


def test_a_block_beside_the_specification_is_found_from_elsewhere(write, monkeypatch, tmp_path_factory):
    write("specs/block_beside_saved.py", BLOCK)
    text = SPEC.replace('"rev-mlp"', '"block_beside_saved:Beside"').replace(
        "options = { hidden = 12, dropout = 0.1 }", ""
    )
    assert main(["run", write("specs/small.toml", text), "--set", "run.epochs=1"]) == 0
    directory = only_run().resolve()
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not folder.endswith("/specs")])
    monkeypatch.delitem(sys.modules, "block_beside_saved")
    assert SavedRun.open(directory).load()[0].block("rev.0").kind == "reversible"


def test_samples_of_another_type_are_refused(opened):
    """A float image was not normalised, and its answer was wrong."""
    network, _ = opened.load()
    samples = open_data(opened).test.fetch(range(4), seed=0, epoch=0)[0]
    assert torch.equal(network(samples), network(samples.long())), "whole numbers of any type"
    for other in (samples.float() / 255, samples > 7, samples.long() * 99):
        with pytest.raises(TypeError, match="the network reads uint8 as the data set has it"):
            network(other)


def test_it_trains_on_in_anyones_loop(opened):
    network, _ = opened.load()
    samples, targets = open_data(opened).test.fetch(range(8), seed=0, epoch=0)[0], torch.arange(8)
    optimizer = torch.optim.SGD(network.train().parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(samples), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_weights_of_another_network_are_refused_and_each_is_named(opened):
    network = Network(opened.network, opened.facts)
    weights = load_file(opened.directory / "weights.safetensors")
    others = {key: value for key, value in weights.items() if not key.startswith("head/")}
    others["stem/conv.weight"] = torch.zeros(1)
    with pytest.raises(SpecError) as caught:
        network.load_weights(others, "a file")
    said = str(caught.value)
    assert said.startswith("a file is of another network: it has no head/linear.")
    assert "stem/conv.weight is [1], and " in said


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
    with pytest.raises(SpecError, match=r"network reads samples .*3, 8, 6.*, and the data has .*3, 8, 8"):
        evaluate_run(SavedRun.open(trained, ["data.options.shape=[3,8,8]"]))


FRUIT = """
import torch

ROWS = [(torch.eye(2)[i % 2], i % 2) for i in range(16)]
"""


def test_other_classes_are_refused(write):
    """Those of another order had 0 % right, and other ones too, without a word."""
    write("fruit.py", FRUIT)
    spec = """
    data = { name = "torch", batch = 8, options = { train = "fruit:ROWS", test = "fruit:ROWS", classes = ["apple", "pear"] } }
    [[graph.node]]
    name = "head"
    block = "pool-linear"
    options = { outputs = 2 }
    """
    assert main(["run", write("fruit.toml", spec), "--set", "run.epochs=1"]) == 0
    with pytest.raises(SpecError, match="the run's classes are apple, pear, and those of the data pear, apple"):
        evaluate_run(SavedRun.open("latest", ['data.options.classes=["pear", "apple"]']))


def test_the_command(trained, capsys):
    assert main(["evaluate", str(trained), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["means"] == summary_of(trained)["test"]
    assert main(["evaluate", str(trained), "--weights", "latest"]) == 0
    assert "   40 samples, weights of " in capsys.readouterr().out
    assert main(["evaluate", str(trained), "--set", "data.batchh=3"]) == 2
    assert "did you mean 'batch'?" in capsys.readouterr().err


def test_a_part_of_the_data_is_spread_over_all_of_it(write):
    write("small.toml", SPEC)
    (rows,) = prepare("small.toml", ["data.evaluation_batch=16"]).opened.evaluation(range(359), 1).parts
    assert rows.tolist() == sorted(rows.tolist())
    assert rows.min() < 60
    assert rows.max() >= 300
