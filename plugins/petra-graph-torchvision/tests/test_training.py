"""Networks of torchvision in runs: they learn what plain autograd learns, from weights that a file has, reversible or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision import models

import petra_graph
from petra_graph.cli.main import main
from petra_graph.training.prepared_run import prepare

HERE = Path(__file__).parent.parent
SPEC = """
name = "digits"

[architecture]
name = "torchvision"
options = { network = "shufflenet_v2_x0_5" }

[method]
name = "backprop"

[optimizer]
name = "sgd"
options = { lr = 0.01, momentum = 0.9, nesterov = false, weight_decay = 0.0 }

[data]
name = "random"
batch = 16
options = { shape = [1, 8, 8], classes = 10, train = 16, test = 8 }

[precision]
compute = "float64"

[run]
epochs = 3
threads = 1
"""
REVERSIBLE = {
    "architecture": {"name": "torchvision-dr2net", "options": {"network": "mobilenet_v3_small"}},
    "data.options.train": 48,
    "run.epochs": 1,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("digits.toml").write_text(SPEC)
    return tmp_path


def weights_of(run: petra_graph.Run) -> dict[str, Tensor]:
    """Return a run's weights by their names in torchvision."""
    weights = load_file(Path(run.directory) / "weights.safetensors")
    return {name.partition("/")[2]: tensor for name, tensor in weights.items()}


def seen(images: Tensor) -> Tensor:
    """Return images as the network of torchvision reads them; the data set names no mean."""
    return (images.double() / 255).expand(-1, 3, -1, -1)


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    names = [name for name, tensor in expected.items() if tensor.is_floating_point()]
    apart = sum(float((found[name] - expected[name]).square().sum()) for name in names)
    return float((apart / sum(float(expected[name].square().sum()) for name in names)) ** 0.5)


def test_backprop_is_plain_autograd_from_a_file_of_torchvisions() -> None:
    """All training samples are one micro-batch, whose order changes no more than rounding, which BatchNorm of 16 values magnifies."""
    torch.manual_seed(0)
    network = models.shufflenet_v2_x0_5(num_classes=10)
    torch.save(network.state_dict(), "pretrained.pth")
    found = weights_of(petra_graph.train("digits.toml", {"init.weights": "pretrained.pth"}))

    prepared = prepare("digits.toml", ())
    data = prepared.opened.data.train
    images, targets = data.fetch(np.arange(len(data)), seed=0, epoch=0)
    x = seen(images)
    network.double().train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    expected = network.state_dict()
    assert difference(found, expected) < 1e-8
    network.load_state_dict(found)  # and back to torchvision, strictly


@pytest.mark.long
def test_reversible_networks_learn_what_backprop_learns() -> None:
    """While the coefficients move."""
    options = {"alpha": 0.9, "beta": 0.2}
    found = []
    for method in ("backprop", "reversible-backprop"):
        changes: dict[str, Any] = {**REVERSIBLE, "method.name": method}
        changes |= {f"architecture.options.{key}": value for key, value in options.items()}
        changes["callback"] = [{"name": "dual-residual-schedule", "options": {"updates": 5, **options}}]
        found.append(weights_of(petra_graph.train("digits.toml", changes)))
    assert difference(found[1], found[0]) < 1e-7


@pytest.mark.long
def test_the_schedule_moves_the_coefficients_and_resuming_goes_on_with_it() -> None:
    callback = [{"name": "dual-residual-schedule", "options": {"alpha": 0.5, "beta": 0.9, "updates": 6}}]
    changes: dict[str, Any] = {
        **REVERSIBLE,
        "callback": callback,
        "method.name": "petra",
        "checkpoint.every": "2 updates",
    }
    run = petra_graph.train("digits.toml", changes | {"precision.compute": "float32"})
    weights = load_file(Path(run.directory) / "weights.safetensors")
    moved = {name: tensor.item() for name, tensor in weights.items() if name.endswith(("/alpha", "/beta"))}
    updates = 48 // 16
    assert len(moved) == 6
    for name, value in moved.items():
        begun, end = (1.0, 0.5) if name.endswith("alpha") else (0.1, 0.9)
        assert value == pytest.approx(begun + (end - begun) * updates / 6), name
    first, *later = sorted((Path(run.directory) / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
    assert later
    again = petra_graph.train(resume=run.directory)
    assert again.summary["status"] == "done"
    assert int(first.name) < updates
    after = load_file(Path(again.directory) / "weights.safetensors")
    assert all(torch.equal(after[name], weights[name]) for name in weights)


@pytest.mark.long
def test_a_converted_network_begins_as_the_pretrained_one() -> None:
    """With beta near 0 it has its outputs, and its coefficients are left out of the file."""
    torch.manual_seed(1)
    network = models.mobilenet_v3_small(num_classes=10).double().eval()
    torch.save(network.state_dict(), "pretrained.pth")
    changes: dict[str, Any] = {
        **REVERSIBLE,
        "architecture.options.beta": 1e-9,
        "init.weights": "pretrained.pth",
        "init.leave_out": ["*/alpha", "*/beta"],
        "method.name": "backprop",
        "optimizer.options.lr": 0.0,
    }
    run = petra_graph.train("digits.toml", changes)
    found = weights_of(run)
    network.load_state_dict({key: found[key] for key in network.state_dict()})  # with the running statistics of the run
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    x = seen(images)
    with torch.no_grad():
        torch.testing.assert_close(run.load()(images).double(), network(x), rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(models.googlenet(num_classes=7, init_weights=True).state_dict(), "googlenet.pth")
    of = [
        "--set",
        "architecture.options={ network = 'googlenet', resize = 32 }",
        "--set",
        "init.weights='googlenet.pth'",
    ]
    assert main(["run", "digits.toml", "--dry-run", *of]) == 2
    said = capsys.readouterr().err
    assert "fc/fc.weight is [7, 1024] in the file, and [10, 1024] here" in said
    assert "aux1.conv.conv.weight, " in said
    assert main(["run", "digits.toml", "--dry-run", *of, "--set", "init.leave_out=['fc', 'aux*']"]) == 0


@pytest.mark.parametrize("spec", sorted((HERE / "specs").glob("*.toml")), ids=lambda path: path.stem)
def test_the_specs_are_valid_and_planned(spec: Path) -> None:
    assert main(["validate", str(spec)]) == 0
    assert main(["plan", str(spec), "--json"]) == 0


def test_the_plan_of_a_large_network(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["architecture.options.network='resnet50'", "method.name='petra'", "data.batch=8"]
    sets = [part for change in changes for part in ("--set", change)]
    image = ["--set", "data={ name = 'random', batch = 8, options = { shape = [3, 224, 224], classes = 1000 } }"]
    assert main(["plan", "digits.toml", "--json", *sets[:4], *image]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert sum(stage["parameters"] for stage in plan["stages"]) == 25_557_032, "as torchvision's page has it"
