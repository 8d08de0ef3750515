"""What the doctor finds of torch and its devices."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from petra_graph_authoring.doctor import device_findings
from petra_graph_authoring.doctor.device_findings import examine_devices


@pytest.fixture
def examined(tmp_path, monkeypatch):
    """Examine a torch with these GPUs, each a name with its bytes."""

    def examine(*gpus, cuda="12.8", driver=False, gloo=True):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: gloo)
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: SimpleNamespace(name=gpus[at][0]))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda at: gpus[at][:0:-1])
        monkeypatch.setattr(device_findings, "compute_on", lambda _: None)
        (tmp_path / "driver").touch()
        found = list(examine_devices((), tmp_path / ("driver" if driver else "none")))
        assert found[0].name == "cpu"
        return [(one.name, one.status, one.found) for one in found[1:]]

    return examine


def test_without_gpus(examined):
    import torchvision

    versions = f"{torch.__version__} (CUDA 12.8) and torchvision {torchvision.__version__}, 1 thread"
    assert examined() == [
        ("torch", "ok", versions),
        ("processes", "ok", "torch.distributed with gloo and nccl"),
        ("cuda", "absent", "no GPU"),
    ]


def test_gpus(examined, monkeypatch):
    gpu = ("H100", 80 * 2**30, 60 * 2**30)
    found = ("cuda:0", "ok", "H100, 80 GiB, 60 GiB of it free")
    assert examined(gpu)[2:] == [found]

    def refuse(_):
        raise RuntimeError("no kernel image\nand more")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    found = [(one.name, one.status, one.found) for one in examine_devices()]
    assert found[3:] == [("cuda", "broken", "cannot compute: RuntimeError: no kernel image")]


def test_gpus_that_this_torch_does_not_see(examined, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cpu = examined(cuda=None, driver=True)[2]
    assert cpu == ("cuda", "warning", "NVIDIA's driver is here, and this torch is built for the CPU only")
    assert examined(driver=True)[2][2] == "NVIDIA's driver is here, and torch finds no GPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert examined(driver=True)[2][2] == "NVIDIA's driver is here, and CUDA_VISIBLE_DEVICES hides its GPUs"


def test_a_build_without_gloo(examined):
    assert examined(gloo=False)[1][1:] == ("warning", "torch has no gloo: runs have one process")


def test_a_torch_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.ops", None)
    (_, found) = examine_devices()
    assert (found.name, found.status) == ("torch", "broken")
    assert found.found.startswith("ModuleNotFoundError: import of torchvision.ops halted")
    (_, found) = examine_devices(["my-blocks"])
    assert found.found == "it cannot be imported: it reads all entry points, and those of my-blocks are damaged"
