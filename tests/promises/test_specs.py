"""Every specification that we ship: what it says of its network holds, and a run of it would start.

Data sets that are not here are replaced by random samples of the same shape; nothing else is.
"""

import json
import re
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.network import check_network
from tests.support import ROOT
from tests.support.runs import overrides

SPECS = sorted((ROOT / "specs").glob("*.toml"))
OF_THE_PAPER = re.compile("(revnet|resnet)(18|34|50)_(cifar10|imagenet)")
USUAL = [
    spec
    for spec in SPECS
    if not OF_THE_PAPER.match(spec.stem) or spec.stem in {"revnet50_imagenet", "resnet18_cifar10"}
]
"""The paper's others differ from these in the depth or the data set."""


def random_data(spec: Path) -> list[str]:
    """Return the words that put random samples of the same shape in the place of a specification's data."""
    facts = check_spec(str(spec)).facts
    options = f"{{ shape = {list(facts.shape)}, classes = {facts.classes}, train = 256, test = 256 "
    if facts.dtype == "int64":  # tokens
        options += f', dtype = "int64", levels = {facts.classes}, target_shape = {list(facts.target_shape)} '
    return overrides("data.name=random", f"data.options={options}}}")


@pytest.mark.parametrize("spec", USUAL, ids=lambda spec: spec.stem)
def test_a_run_of_it_would_start(spec, capsys):
    assert main(["run", str(spec), "--dry-run", "--json", *random_data(spec)]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == spec.stem


RECIPES = {
    "cifar10": (300, [150, 225], 5e-4),
    "imagenet32": (90, [30, 60, 80], 1e-4),
    "imagenet": (90, [30, 60, 80], 1e-4),
}
"""By data set: epochs, milestones and weight decay."""


@pytest.mark.parametrize("data", RECIPES)
@pytest.mark.parametrize("kind", ["revnet", "resnet"])
@pytest.mark.parametrize("depth", [18, 34, 50])
def test_all_models_of_table_2_are_there_with_the_papers_recipe(kind, depth, data):
    checked = check_spec(str(ROOT / "specs" / f"{kind}{depth}_{data}.toml"))
    spec, optimizer, (epochs, milestones, weight_decay) = checked.spec, checked.optimizer.options, RECIPES[data]
    assert (spec.run.epochs, list(checked.lr_schedule.options.milestones)) == (epochs, milestones)
    assert (checked.optimizer.name, optimizer.lr, optimizer.momentum) == ("sgd", 0.1, 0.9)
    assert (optimizer.nesterov, optimizer.weight_decay) == (True, weight_decay)
    assert (spec.lr_schedule.warmup_epochs, spec.lr_schedule.scaling) == (5, "goyal")
    assert spec.data.batch == (64 if kind == "revnet" else 256 if data == "imagenet" else 128)
    assert spec.method.name == ("petra" if kind == "revnet" else "backprop")


def test_the_architecture_and_its_nodes_written_out_are_one_network():
    """`specs/revnet50_imagenet.toml` lists its nodes; as `[architecture]` it has the same shapes and parameters."""
    spec = ROOT / "specs" / "revnet50_imagenet.toml"
    named = ["architecture.name=revnet", "architecture.options={ depth = 50 }"]
    networks = [check_network(check_spec(str(spec), settings)) for settings in ([], named)]
    one, other = ([each.shapes[name] for name in each.graph.order] for each in networks)
    assert one == other
