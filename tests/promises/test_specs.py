"""Every specification that we ship: what it says of its network holds, and a run of it would start.

Data sets that are not here are replaced by random samples of the same shape; nothing else is.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from petra_graph.planning.check_spec import check_spec
from tests.support import ROOT

SPECS = sorted((ROOT / "specs").glob("*.toml"))
PARAMETERS = {
    "revnet18_cifar10": 11_185_802,
    "revnet18_imagenet32": 12_200_552,
    "revnet18_imagenet": 12_215_912,
    "revnet34_cifar10": 21_297_674,
    "revnet34_imagenet32": 22_312_424,
    "revnet34_imagenet": 22_327_784,
    "revnet50_cifar10": 26_350_218,
    "revnet50_imagenet32": 30_406_248,
    "revnet50_imagenet": 30_421_608,
    "resnet18_cifar10": 11_178_762,
    "resnet18_imagenet32": 11_686_632,
    "resnet18_imagenet": 11_694_312,
    "resnet50_cifar10": 23_547_402,
    "resnet50_imagenet32": 25_575_912,
    "resnet50_imagenet": 25_583_592,
}
"""Of the paper's networks, as the authors' code counts them."""


USUAL = [
    spec for spec in SPECS if spec.stem not in PARAMETERS or spec.stem in {"revnet50_imagenet", "resnet18_cifar10"}
]
"""The paper's others differ from these in the depth or the data set."""


def random_data(spec: Path) -> list[str]:
    facts = check_spec(str(spec)).facts
    options = f"{{ shape = {list(facts.shape)}, classes = {facts.classes}, train = 256, test = 256 "
    if facts.dtype == "int64":  # tokens
        options += f', dtype = "int64", levels = {facts.classes}, target_shape = {list(facts.target_shape)} '
    options += "}"
    return ["--set", "data.name=random", "--set", f"data.options={options}"]


@pytest.mark.parametrize("spec", USUAL, ids=lambda spec: spec.stem)
def test_a_run_of_it_would_start(spec, capsys):
    assert main(["run", str(spec), "--dry-run", "--json", *random_data(spec)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == spec.stem
    if spec.stem in PARAMETERS:
        assert found["parameters"] == PARAMETERS[spec.stem]


def test_all_models_of_table_2_are_there():
    names = {spec.stem for spec in SPECS}
    models = {f"{kind}{depth}_{data}" for kind in ("revnet", "resnet") for depth in (18, 34, 50) for data in DATA}
    assert models <= names


DATA = {
    "cifar10": (300, [150, 225], 5e-4),
    "imagenet32": (90, [30, 60, 80], 1e-4),
    "imagenet": (90, [30, 60, 80], 1e-4),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("kind", ["revnet", "resnet"])
@pytest.mark.parametrize("depth", [18, 34, 50])
def test_the_recipe_is_the_papers(kind, depth, data):
    checked = check_spec(str(ROOT / "specs" / f"{kind}{depth}_{data}.toml"))
    spec, (epochs, milestones, weight_decay) = checked.spec, DATA[data]
    assert spec.run.epochs == epochs
    assert (checked.optimizer.plugin.name, checked.optimizer.options.lr) == ("sgd", 0.1)
    assert (checked.optimizer.options.momentum, checked.optimizer.options.nesterov) == (0.9, True)
    assert checked.optimizer.options.weight_decay == weight_decay
    assert (spec.lr_schedule.warmup_epochs, spec.lr_schedule.scaling) == (5, "goyal")
    assert list(checked.lr_schedule.options.milestones) == milestones
    assert spec.data.batch == (64 if kind == "revnet" else 256 if data == "imagenet" else 128)
    assert spec.method.name == ("petra" if kind == "revnet" else "backprop")


def test_the_architecture_and_its_nodes_written_out_are_one_network(capsys):
    """`specs/revnet50_imagenet.toml` lists its nodes; as `[architecture]` it has the same shapes and parameters."""
    spec = ROOT / "specs" / "revnet50_imagenet.toml"
    data = random_data(spec)
    listed = [*data]
    named = [*data, "--set", "architecture.name=revnet", "--set", "architecture.options={ depth = 50 }"]
    found = []
    for arguments in (listed, named):
        assert main(["run", str(spec), "--dry-run", "--json", *arguments]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
