"""A network of one's own: cut, planned, trained on any number of processes, continued, exported; parameters that its nodes share."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.training.training_run import run
from tests.networks import cut_networks as networks
from tests.support import ROOT
from tests.support.forks import alone, ended
from tests.support.pages import Page, files_of
from tests.support.runs import only_run, weights_bytes, without_times
from tests.support.stopping import StopAt

SHOWN = files_of(Page(ROOT / "plugins" / "guide" / "network.md"))
GPT = """
name = "gpt"

[architecture]
name = "module"
options = { build = "tests.networks.cut_networks:GPT", kwargs = { dropout = 0.0 } }

[optimizer]
options = { lr = 0.1 }

[data]
name = "random"
batch = 8
options = { shape = [6], dtype = "int64", levels = 11, classes = 11, target_shape = [6], train = 32, test = 8 }
"""
WHOLE = """
name = "whole"

[[graph.node]]
name = "head"
block = "module-head"
options = { module = "tests.networks.cut_networks:GPT", kwargs = { dropout = 0.0 } }
"""
UNTIED, ONE_STAGE = ("--set", "partition.untie=true"), ("--set", "partition.stages=1", "--set", "method.name=backprop")
UNCHECKED = "--set"
"""Where another test has the same blocks checked."""


@pytest.fixture
def own(here, write):
    """The spec of the page, with its network beside it."""
    write("my_net.py", SHOWN["my_net.py"])
    sys.modules.pop("my_net", None)
    importlib.invalidate_caches()
    return write("my_net.toml", SHOWN["my_net.toml"])


def test_the_page_trains_exports_and_predicts(own):
    assert main(["plan", own]) == 0
    assert main(["run", own]) == 0
    run = pg.Run(only_run())
    assert run.summary["test"]["top1"] > 0.5  # chance is 0.1
    assert main(["export", "latest", "--format", "torch-export", "--output", "net.pt2"]) == 0
    weights = load_file(only_run() / "weights.safetensors")
    make = sys.modules["my_net"].Net
    make(blocks=4).load_state_dict({name.partition("/")[2]: tensor for name, tensor in weights.items()})
    assert main(["export", "latest", "--format", "safetensors", "--output", "net.safetensors"]) == 0
    exported = make(blocks=4)
    exported.load_state_dict(load_file("net.safetensors"))
    assert torch.equal(exported.last.weight, weights["last/last.weight"])
    predicted = run.predict(np.zeros((2, 1, 8, 8), np.uint8), top=1)
    assert len(predicted) == 2


def test_in_python_it_is_the_same_network(own):
    sys.path.append(str(Path.cwd()))
    make = importlib.import_module("my_net").Net
    made = pg.make_spec(module=partial(make, blocks=4), data={"name": "digits"})
    assert made.architecture.options == pg.load_spec(own).architecture.options
    listed = pg.make_spec(
        module=make, architecture={"options": {"nodes": ["blocks.*"]}}, data={"name": "digits"}, run={"epochs": 1}
    )
    assert [stage["nodes"] for stage in pg.plan(listed).document["stages"]] == [
        ["blocks.0"],
        ["blocks.1"],
        ["blocks.2"],
    ]
    with pytest.raises(pg.SpecError, match="a node makes its module itself"):
        pg.make_spec(module=make(), data={"name": "digits"})
    with pytest.raises(pg.SpecError, match="arguments of a partial need names"):
        pg.make_spec(module=partial(make, 3), data={"name": "digits"})


@pytest.mark.processes
@pytest.mark.slow
def test_processes_and_an_interruption_change_no_bit(own):
    text = Path(own).read_text(encoding="utf-8")
    Path(own).write_text(text.replace("epochs = 4", "epochs = 2\nmicro_batches = 8"), encoding="utf-8")
    assert main(["run", own, "--set", "run.directory=whole"]) == 0
    whole = weights_bytes(only_run("whole")), without_times(only_run("whole"))
    with alone("run", own, "--processes", "2", ranks_fork=True) as running:
        assert ended([running]) == [0], running.said
    assert (weights_bytes(only_run()), without_times(only_run())) == whole
    assert run(own, ["run.directory=stopped"], StopAt("trained 1/3")).interrupted
    assert main(["run", "--resume", str(only_run("stopped"))]) == 0
    assert (weights_bytes(only_run("stopped")), without_times(only_run("stopped"))) == whole


def test_a_network_with_its_samples_in_another_dimension_trains_and_is_exported_for_any_batch(here, write):
    text = GPT.replace(":GPT", ":TimeFirst").replace("dropout = 0.0", "").replace("classes = 11", "classes = 3")
    assert main(["run", write("gpt.toml", text.replace("target_shape = [6], ", ""))]) == 0
    assert main(["export", "latest", "--format", "torch-export", "--output", "net.pt2"]) == 0
    network, program = pg.load("latest").eval(), torch.export.load("net.pt2").module()
    for n in (2, 5):
        tokens = torch.randint(0, 11, (n, 6))
        assert torch.allclose(program(tokens), network(tokens), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ('build = "tests.networks.cut_networks:Nett"', "there is no tests.networks.cut_networks:Nett"),
        (
            'build = "tests.networks.cut_networks:GPT", kwargs = { wdith = 3 }',
            "cannot be called with kwargs: got an unexpected",
        ),
        ('build = "tests.networks.cut_networks:GPT", nodes = ["h.*"]', "no module is called 'h.*'"),
        (
            'build = "tests.networks.cut_networks:Branching"',
            "tests.networks.cut_networks:Branching cannot be cut into nodes: ",
        ),
        ('build = "tests.networks.cut_networks:functional"', "name a class, or a function that makes a new network"),
    ],
)
def test_mistakes_are_told_at_the_options(here, write, capsys, options, reason):
    old = 'build = "tests.networks.cut_networks:GPT", kwargs = { dropout = 0.0 }'
    assert main(["plan", write("gpt.toml", GPT.replace(old, options))]) == 2
    said = capsys.readouterr().err
    assert "gpt.toml:5:" in said
    assert reason in said
    assert "Traceback" not in said


def test_shared_parameters_are_refused_across_stages(here, write, capsys):
    spec = write("gpt.toml", GPT)
    assert main(["plan", spec]) == 2
    said = capsys.readouterr().err
    assert (
        'nodes "transformer.wte" and "head" share the parameter transformer.wte.weight, and are in stages 1 and 5'
        in said
    )
    assert "partition.untie = true" in said
    assert main(["run", spec]) == 2


def test_untied_each_stage_updates_its_own_copy_equal_at_the_start(here, write, capsys):
    spec = write("gpt.toml", GPT)
    assert main(["plan", spec, *UNTIED]) == 0
    assert "another model than the tied one" in " ".join(capsys.readouterr().out.split())
    assert main(["run", spec, *UNTIED, "--set", "optimizer.options.lr=0.0", "--set", "run.directory=start"]) == 0
    assert main(["run", spec, *UNTIED, *UNCHECKED]) == 0
    assert "another model than the tied one" in " ".join(capsys.readouterr().err.split())
    for directory, equal in (("start", True), ("runs", False)):
        weights = load_file(only_run(directory) / "weights.safetensors")
        assert torch.equal(weights["transformer.wte/transformer.wte.weight"], weights["head/head.weight"]) == equal


def test_in_one_stage_a_shared_parameter_trains_as_in_plain_torch(here, write, capsys):
    """As the whole network does as one node, from the same weights; a file of safetensors has a shared tensor once."""
    torch.manual_seed(0)
    begun = {name: tensor for name, tensor in networks.GPT().state_dict().items() if name != "head.weight"}
    save_file(begun, "parts.safetensors")
    tied = {**begun, "head.weight": begun["transformer.wte.weight"].clone()}
    save_file({f"module.{name}": tensor for name, tensor in tied.items()}, "whole.safetensors")
    cut, whole = write("gpt.toml", GPT), write("whole.toml", WHOLE + GPT[GPT.index("[optimizer]") :])
    assert main(["run", cut, *ONE_STAGE, *UNCHECKED, "--set", "init.weights=parts.safetensors"]) == 0
    weights_of_whole = ("--set", "init.weights=whole.safetensors", "--set", "run.directory=whole")
    assert main(["run", whole, "--set", "method.name=backprop", *UNCHECKED, *weights_of_whole]) == 0
    found, expected = (
        load_file(only_run() / "weights.safetensors"),
        load_file(only_run("whole") / "weights.safetensors"),
    )
    own = {name.partition("/")[2]: tensor for name, tensor in found.items()}
    assert not torch.equal(own["head.weight"], begun["transformer.wte.weight"])
    save_file({**tied, "head.weight": tied["head.weight"] + 1}, "untied.safetensors")
    assert main(["run", cut, *ONE_STAGE, "--set", "init.weights=untied.safetensors", "--dry-run"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "transformer.wte.weight, head.weight of the file are one tensor in the network, and differ" in said
    for name, tensor in expected.items():
        torch.testing.assert_close(own[name.removeprefix("head/module.")], tensor)
