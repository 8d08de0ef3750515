"""Runs that can be opened, and the weights that they have."""

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
from petra_graph.inference.saved_run import SavedRun, open_data
from petra_graph.record import checkpoint
from petra_graph.training.trained_network import Network
from tests.support.runs import SPEC, only_run


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
    with pytest.raises(SpecError, match=f"the checkpoint before forward {last} is not used"):
        SavedRun.open(copy).load(str(last))


def test_weights_that_are_not_there(copy):
    resolved = copy / "resolved.toml"
    resolved.write_text(resolved.read_text().replace('best = "test/loss"\n', ""))
    run = SavedRun.open(copy)
    with pytest.raises(SpecError, match=r"has no weights 'best': its \[checkpoint\] has no `best`"):
        run.load("best")
    with pytest.raises(SpecError, match="has no weights '7'") as error:
        run.load("7")
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
        with pytest.raises(TypeError, match=r"the network reads samples of uint8 \(got torch"):
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
    network = Network.of(opened.network, opened.facts)
    weights = load_file(opened.directory / "weights.safetensors")
    others = {key: value for key, value in weights.items() if not key.startswith("head/")}
    others["stem/conv.weight"] = torch.zeros(1)
    with pytest.raises(SpecError) as caught:
        network.load_weights(others, "a file")
    said = str(caught.value)
    assert said.startswith("a file is of another network: it has no head/linear.")
    assert "stem.conv.weight: copying a param with shape torch.Size([1])" in said
