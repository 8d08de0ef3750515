"""A package that registers first-party names changes no spec that does not name it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from petra_graph.errors import PluginError
from petra_graph.planning.check.check_spec import check_spec
from tests.promises.test_broken_contracts import SPEC

DECLARED = """
from attrs import frozen
from petra_graph.plugins import ArchitectureDeclaration, BlockDeclaration, LoggerDeclaration, LossDeclaration
from petra_graph.plugins import LrScheduleDeclaration, NodeSpec, OptimizerDeclaration, option

@frozen(kw_only=True)
class Rate:
    lr: float = option("rate", default=0.1)

def nodes(options, facts):
    return (
        NodeSpec(name="stem", block="petra-graph:conv-stem", options={"channels": 4}),
        NodeSpec(name="mine", block="rev-basic"),
        NodeSpec(name="head", block="petra-graph:pool-linear", options={"outputs": 3}),
    )

BLOCK = BlockDeclaration(summary="x", build="petra_graph.catalog.blocks.residual:RevBasic", kind="reversible", streams=2)
NET = ArchitectureDeclaration(summary="x", build=f"{__name__}:nodes")
LOGGER = LoggerDeclaration(summary="x", build="nowhere:x")
LOSS = LossDeclaration(summary="x", build="nowhere:x")
LR_SCHEDULE = LrScheduleDeclaration(summary="x", build="nowhere:x")
OPTIMIZER = OptimizerDeclaration(summary="x", build="nowhere:x", options=Rate)
"""
POINTS = """
[petra_graph.blocks]
rev-basic = names_taken:BLOCK
conv-stem = names_taken:BLOCK
pool-linear = names_taken:BLOCK
[petra_graph.architectures]
my-net = names_taken:NET
[petra_graph.loggers]
tensorboard = names_taken:LOGGER
[petra_graph.losses]
cross-entropy = names_taken:LOSS
[petra_graph.lr_schedules]
constant = names_taken:LR_SCHEDULE
[petra_graph.optimizers]
sgd = names_taken:OPTIMIZER
"""


@pytest.fixture(autouse=True)
def taken(install):
    install("my-plugins", POINTS, names_taken=DECLARED)


def test_an_architecture_has_blocks_of_its_own_distribution_and_defaults_are_first_party(write):
    checked = check_spec(write("a.toml", SPEC))
    owners = {node.plugin.distribution for node in checked.graph.nodes.values()}
    chosen = (checked.optimizer, checked.loss, checked.lr_schedule, *checked.loggers)
    assert owners | {one.plugin.distribution for one in chosen} == {"petra-graph"}


def test_an_architecture_of_that_package_has_its_own_blocks_first(write):
    text = SPEC.replace('"revnet"', '"my-net"').replace("{ depth = 18, width = 0.05 }", "{}")
    checked = check_spec(write("a.toml", text))
    assert checked.graph.nodes["mine"].block == "my-plugins:rev-basic"


def test_a_name_that_the_author_wrote_is_still_refused(write):
    with pytest.raises(PluginError, match='optimizer "sgd" is in 2 distributions: my-plugins, petra-graph'):
        check_spec(write("a.toml", SPEC.replace("[optimizer]", '[optimizer]\nname = "sgd"')))


def test_the_resolved_spec_can_be_run_again(write, capsys):
    assert main(["run", write("a.toml", SPEC), "--json"]) == 0
    directory = json.loads(capsys.readouterr().out)["directory"]
    spec = tomllib.loads(Path(directory, "resolved.toml").read_text())
    assert spec["optimizer"]["name"] == "petra-graph:sgd"
    assert {node["block"] for node in spec["graph"]["node"]} >= {
        "petra-graph:rev-basic",
        "petra-graph:conv-stem",
        "down-basic",
    }
    assert main(["run", f"{directory}/resolved.toml", "--dry-run"]) == 0
