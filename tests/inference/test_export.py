"""Networks for other programs."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import attrs
import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.errors import RunFailed, SpecError
from petra_graph.inference import export as exports
from petra_graph.inference.export import export_network
from petra_graph.inference.saved_run import SavedRun, open_data
from petra_graph.version import __version__
from tests.inference.own_networks import Drawn, Remainders

PLAIN_TORCH = """\
import sys
import numpy as np, torch
assert "petra_graph" not in sys.modules
program = torch.export.load(sys.argv[1]).module()
np.save("outputs.npy", program(torch.from_numpy(np.load("samples.npy"))).detach().numpy())
assert "petra_graph" not in sys.modules
"""


@pytest.fixture
def expected(opened):
    """Samples, and what the network says about them."""
    samples, network = open_data(opened).test.fetch(range(11), seed=0, epoch=0)[0], opened.load()[0]
    with torch.no_grad():
        return samples, network(samples)


def close(found, expected):
    return torch.allclose(torch.as_tensor(found), expected, rtol=0, atol=1e-5)


def test_tensors_with_what_samples_look_like(trained, opened, tmp_path):
    assert main(["export", str(trained), "--format", "safetensors", "--output", str(tmp_path / "a.safetensors")]) == 0
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        state = opened.load()[0].block("layer.1").state_dict()
        assert torch.equal(file.get_tensor("layer.1.first.0.weight"), state["first.0.weight"])
        metadata = file.metadata()
    assert json.loads(metadata["samples"])["shape"] == [3, 8, 6]
    assert tomllib.loads(metadata["spec"])["data"]["name"] == "random"


def test_a_program_for_plain_torch(trained, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(trained), "--format", "torch-export", "--output", "net.pt2"]) == 0
    assert "on 8 samples" in capsys.readouterr().out
    np.save("samples.npy", expected[0].numpy())
    subprocess.run([sys.executable, "-c", PLAIN_TORCH, "net.pt2"], check=True, timeout=100)
    assert close(np.load("outputs.npy"), expected[1])


def test_a_program_for_onnx_with_any_batch_says_how_it_normalises_and_what_classes_are_called(
    opened, expected, tmp_path
):
    facts = attrs.evolve(opened.facts, mean=(0.5, 0.4, 0.3), std=(0.2,) * 3, class_names=tuple("abcdefghij"))
    export_network(attrs.evolve(opened, facts=facts), opened.load()[0], "onnx", tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    for size in (1, 11):
        (found,) = session.run(None, {"images": expected[0][:size].contiguous().numpy()})
        assert close(found, expected[1][:size])
    (images,), (logits,) = session.get_inputs(), session.get_outputs()
    assert (images.name, images.shape) == ("images", ["batch", 3, 8, 6])
    assert (logits.name, logits.shape) == ("logits", ["batch", 10])
    said = session.get_modelmeta().custom_metadata_map
    assert session.get_modelmeta().version == 1
    assert json.loads(said["normalisation"]) == {"divided_by": 255, "mean": [0.5, 0.4, 0.3], "std": [0.2] * 3}
    assert json.loads(said["class_names"]) == list("abcdefghij")
    assert said["petra_graph_version"] == __version__


def test_a_program_of_next_tokens_reads_shorter_windows(letters, capsys):
    assert main(["export", "latest", "--format", "onnx", "--output", "net.onnx"]) == 0
    session = onnxruntime.InferenceSession("net.onnx")
    (tokens,), (outputs,) = session.get_inputs(), session.get_outputs()
    assert (tokens.name, tokens.shape) == ("tokens", ["batch", "position"])
    assert (outputs.name, outputs.shape) == ("logits", ["batch", 8, "position"])
    network = SavedRun.open("latest").load()[0]
    for shape in ((1, 3), (4, 5)):
        some = torch.randint(8, shape)
        with torch.no_grad():
            assert close(session.run(None, {"tokens": some.numpy()})[0], network(some))


def test_outputs_that_differ_are_a_failure(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(exports, "_TERMS", -1)
    with pytest.raises(RunFailed, match="its outputs differ from the network's by"):
        export_network(opened, opened.load()[0], "torch-export", tmp_path / "net.pt2")


def test_without_onnx(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(exports.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SpecError, match="ONNX needs onnx, which is not installed"):
        export_network(opened, opened.load()[0], "onnx", tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("form", "residual", "reason"),
    [
        ("torch-export", lambda x: x * float(x.sum()), "(.|\n)*a block does what torch.export cannot follow"),
        ("onnx", torch.special.i0, ".*bessel_i0(.|\n)*export it as torch-export"),
    ],
)
def test_a_network_that_cannot_be_written(opened, tmp_path, form, residual, reason):
    network = opened.load()[0]
    network.block("layer.0").residual = residual
    with pytest.raises(RunFailed, match=f"^the network cannot be written as {form}: {reason}"):
        export_network(opened, network, form, tmp_path / "net")
    assert not list(tmp_path.iterdir())


# --- tensors of one's own network: it has what its run has trained after `load_state_dict`, or nothing is written ----------

ROWS = {"name": "random", "batch": 16}
ROWS["options"] = {"shape": [8], "dtype": "float32", "classes": 3, "train": 16, "test": 16}
PLAIN_SGD = {"name": "sgd", "options": {"lr": 0.5, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}}


def trained_own(network, **settings):
    whole = {"method": {"name": "backprop"}, "partition": {"stages": 1}, "optimizer": PLAIN_SGD, "run": {"epochs": 4}}
    return pg.train(pg.make_spec(module=network, data=ROWS, **{**whole, **settings}))


def outputs(run, network):
    """Return what a run's network computes, and what the network's own class does with the exported file."""
    exported = run.export("safetensors")
    assert exported.samples == 8
    own = network().eval()
    own.load_state_dict(load_file(exported.file))
    x = torch.rand(5, 8)
    with torch.no_grad():
        return run.load()(x), own(x)


def test_all_of_a_state_dict_comes_and_goes(here):
    begun = Remainders()
    torch.save(begun.state_dict(), "own.pt")
    run = trained_own(Remainders, init={"weights": "own.pt"}, checkpoint={"every": "1 epoch"})
    found, expected = outputs(run, Remainders)
    assert torch.equal(found, expected)
    after = load_file(run.directory / "network.safetensors")
    x = torch.rand(5, 8)
    assert torch.equal(run.load(weights="latest")(x), run.load()(x))
    assert torch.equal(after["scale"], begun.scale)
    assert torch.equal(after["unread.weight"], begun.unread.weight)
    assert not torch.equal(after["activation.weight"], begun.activation.weight)
    assert torch.equal(after["activation.weight"], after["body.2.weight"])


def test_what_its_own_class_cannot_have_is_not_written_but_programs_are(here):
    run = trained_own(Drawn)
    reason = "the network's own class loads the tensors, but its outputs differ"
    with pytest.raises(RunFailed, match=f"nothing is written: {reason}"):
        run.export("safetensors")
    assert not list(Path(run.directory).glob("network.*"))
    assert run.export("torch-export").difference < 1e-5
