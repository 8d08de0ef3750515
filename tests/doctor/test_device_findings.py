"""What the doctor finds of torch: another process imports it, which a broken torch may end."""

from __future__ import annotations

import json
import sys

import pytest

from petra_graph.doctor.device_findings import examine_devices

WHOLE = {
    "torch": "2.9.0",
    "torchvision": "0.24.0",
    "threads": 2,
    "cuda": "12.8",
    "hip": None,
    "distributed": True,
    "gloo": True,
    "nccl": True,
    "gpus": [],
    "error": "",
}
HERE = "shared-memory and process-group" if sys.platform == "linux" else "process-group"


@pytest.fixture
def examined(tmp_path):
    """Examine what a program in place of Python prints."""

    def examine(script, driver=False):
        program = tmp_path / "python"
        program.write_text(f"#!{sys.executable}\nimport os, sys\n{script}\n")
        program.chmod(0o755)
        (tmp_path / "driver").touch()
        found = list(examine_devices(str(program), tmp_path / ("driver" if driver else "none")))
        assert found[0].name == "cpu"
        return [(one.name, one.status, one.found) for one in found[1:]]

    return examine


def says(**changes):
    return f"print({json.dumps(json.dumps({**WHOLE, **changes}))})"


def test_without_gpus(examined):
    assert examined(says()) == [
        ("torch", "ok", "2.9.0 (CUDA 12.8) and torchvision 0.24.0, 2 threads"),
        ("processes", "ok", "torch.distributed with gloo and nccl"),
        ("transports", "ok", f"{HERE} between processes here; nccl: no, no GPU"),
        ("cuda", "absent", "no GPU"),
    ]


def test_gpus(examined):
    found = examined(says(gpus=[["H100", 80 * 2**30, 60 * 2**30]]))
    assert found[3:] == [("cuda:0", "ok", "H100, 80 GiB, 60 GiB of it free")]
    assert examined(says(gpus=[["H100", 2**30, 0]], error="RuntimeError: no kernel image"))[4:] == [
        ("cuda", "broken", "cannot compute: RuntimeError: no kernel image")
    ]


def test_gpus_that_this_torch_does_not_see(examined, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cpu = examined(says(cuda=None), driver=True)[3]
    assert cpu == ("cuda", "warning", "NVIDIA's driver is here, and this torch is built for the CPU only")
    assert examined(says(), driver=True)[3][2] == "NVIDIA's driver is here, and torch finds no GPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert examined(says(), driver=True)[3][2] == "NVIDIA's driver is here, and CUDA_VISIBLE_DEVICES hides its GPUs"


@pytest.mark.parametrize(
    ("gpus", "changes", "expected"),
    [
        (2, {"nccl": False}, "no, this torch has none"),
        (1, {}, "no, it takes one process a GPU, and here is one GPU"),
        (2, {"error": "RuntimeError: no kernel image"}, "no, GPUs cannot compute"),
        (2, {}, "yes, though nobody has run it"),
    ],
)
def test_whether_nccl_can_carry_messages(examined, monkeypatch, gpus, changes, expected):
    monkeypatch.setattr("sys.platform", "darwin")  # where no memory is shared
    found = examined(says(gpus=[["H100", 2**30, 0]] * gpus, **changes))
    assert found[2] == ("transports", "ok", f"process-group between processes here; nccl: {expected}")


def test_a_build_without_gloo(examined):
    assert examined(says(gloo=False))[1][1:] == ("warning", "torch has no gloo: runs have one process")


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("sys.exit('ImportError: libtorch.so: cannot open')", "ImportError: libtorch.so: cannot open"),
        ("os.abort()", "importing it ends the process with code -6"),
        ("", "importing it ends the process with code 0"),
    ],
)
def test_a_torch_that_cannot_be_imported(examined, script, fault):
    assert examined(script) == [("torch", "broken", fault)]
