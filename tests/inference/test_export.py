"""Networks for other programs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch

from petra_graph.cli.main import main
from petra_graph.errors import RunFailed, SpecError
from petra_graph.inference import export as exports
from petra_graph.inference.export import export_network
from petra_graph.inference.saved_run import SavedRun, open_data

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


def test_a_program_for_plain_torch(trained, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(trained), "--format", "torch-export", "--output", "net.pt2"]) == 0
    assert "on 8 samples" in capsys.readouterr().out
    np.save("samples.npy", expected[0].numpy())
    subprocess.run([sys.executable, "-c", PLAIN_TORCH, "net.pt2"], check=True, timeout=100)
    assert close(np.load("outputs.npy"), expected[1])


def test_a_program_for_onnx_with_any_batch_that_normalises(opened, expected, tmp_path):
    export_network(opened, opened.load()[0], "onnx", tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    for size in (1, 11):
        (found,) = session.run(None, {"samples": expected[0][:size].contiguous().numpy()})
        assert close(found, expected[1][:size])


def test_a_program_of_next_tokens_reads_shorter_windows(letters, capsys):
    assert main(["export", "latest", "--format", "onnx", "--output", "net.onnx"]) == 0
    session = onnxruntime.InferenceSession("net.onnx")
    network = SavedRun.open("latest").load()[0]
    for shape in ((1, 3), (4, 5)):
        some = torch.randint(8, shape)
        with torch.no_grad():
            assert close(session.run(None, {"samples": some.numpy()})[0], network(some))


def test_outputs_that_differ_are_a_failure(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(exports, "_TERMS", -1)
    with pytest.raises(RunFailed, match="its outputs differ from the network's by"):
        export_network(opened, opened.load()[0], "torch-export", tmp_path / "net.pt2")


@pytest.mark.parametrize(
    ("form", "residual", "reason"),
    [("torch-export", lambda x: x * float(x.sum()), ".*data-dependent"), ("onnx", torch.special.i0, ".*bessel_i0")],
)
def test_a_network_that_cannot_be_written(opened, tmp_path, form, residual, reason):
    network = opened.load()[0]
    network.block("layer.0").residual = residual
    with pytest.raises(RunFailed, match=f"^the network cannot be written as {form}: {reason}"):
        export_network(opened, network, form, tmp_path / "net")
    assert not list(tmp_path.iterdir())


def test_a_form_that_there_is_not(opened):
    with pytest.raises(SpecError, match=r"has no form 'safetensors'(.|\n)*torch-export"):
        export_network(opened, opened.load()[0], "safetensors")
