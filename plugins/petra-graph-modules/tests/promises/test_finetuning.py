"""Fine-tuning a part of a network, or adapters of it: what is frozen costs and changes nothing, under every method and on any processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from petra_graph_modules.declared_passes import FinetuneOptions, LoraOptions
from safetensors.torch import load_file

import petra_graph
from petra_graph.cli.main import main
from petra_graph.kinds.listener import Listener
from petra_graph.training.training_run import run
from tests.support.costs import predicted_and_measured
from tests.support.forks import RUN, alone, children, ended, until
from tests.support.forks import SPEC as PROCESSES
from tests.support.pairwise import thinned
from tests.support.pipelines import CHAIN, batches, pipeline, plain_network, relative_error
from tests.support.runs import SPEC, only_run, summary_of, weights_bytes

LORA = FinetuneOptions(trained=["head"], lora=LoraOptions(on=["stem/*", "rev*/*"], rank=3, alpha=6.0))
EVERY = ("--set", "checkpoint.every=10 updates")
TABLE = """
[finetune]
trained = ["head"]
lora = { on = ["rev.*/*"], rank = 2, alpha = 4, dropout = 0.1 }
"""
METHODS = [
    {"method": "petra"},
    {"method": "pipedream"},
    {"method": "backprop"},
    {"method": "reversible-backprop"},
    {"method": "dsp", "schedule": "lockstep"},
]


def trained(built):
    return {
        name
        for executor in built.executors
        for node, module in executor.modules.items()
        for name in (f"{node}/{key}" for key, one in module.named_parameters() if one.requires_grad)
    }


@pytest.mark.parametrize("settings", METHODS, ids=str)
def test_only_what_is_trained_moves_and_has_state(settings):
    built = pipeline(CHAIN, (8,), passes={"finetune": LORA}, optimizer="adamw", weight_decay=0.5, **settings)
    before = built.parameters()
    built.train(batches((8,), 12))
    moved = {name for name, value in built.parameters().items() if not torch.equal(value, before[name])}
    assert moved == trained(built)
    for executor in built.executors:
        optimizer = executor.updater.optimizer
        states = set() if optimizer is None else set(map(id, optimizer.state))
        assert states == {
            id(one) for module in executor.modules.values() for one in module.parameters() if one.requires_grad
        }
        assert all(
            one.grad is None
            for module in executor.modules.values()
            for one in module.parameters()
            if not one.requires_grad
        )


def test_gradients_of_adapters_in_reversible_blocks_are_plain_autograd_s():
    """Adapters have B = 0 at the start, when A has no gradient: compared after some updates."""
    built = pipeline(CHAIN, (8,), passes={"finetune": LORA}, method="petra", schedule="sequential", rate=lambda _: 0.1)
    data = batches((8,), 6)
    modules, forward = plain_network(built)
    parameters = [one for module in modules.values() for one in module.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)
    built.train(data)
    for samples, targets in data:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(forward(samples), targets).backward()
        optimizer.step()
    plain = {f"{name}/{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}
    assert relative_error(built.parameters(), plain) < 1e-10
    assert any("lora_A" in name for name in trained(built))


MEASURED = [*METHODS, {"method": "petra", "optimizer": "adam"}]


@pytest.mark.parametrize("settings", thinned(MEASURED, MEASURED[::2]), ids=str)
def test_predicted_memory_is_the_measured(settings):
    predicted, measured = predicted_and_measured(
        CHAIN, (8,), batch=64, passes={"finetune": LORA}, accumulation=2, **settings
    )
    full, _ = predicted_and_measured(CHAIN, (8,), batch=64, accumulation=2, **settings)
    assert max(abs(stage.total / found - 1) for stage, found in zip(predicted, measured, strict=True)) < 0.01
    for stage, other in list(zip(predicted, full, strict=True))[:-1]:  # the head is trained in both
        assert stage.optimizer < other.optimizer
        assert stage.gradients <= other.gradients


def tuned_run(write, *changes, table=TABLE):
    spec = write("tuned.toml", SPEC.replace("[run]", f"{table}\n[run]"))
    run(spec, ["run.epochs=2", *changes], Listener())
    return spec


def test_pretrained_weights_begin_and_adapters_are_new(write, capsys):
    base = write("base.toml", SPEC)
    run(base, ["run.epochs=1", "run.directory=base"], Listener())
    (file,) = (path / "weights.safetensors" for path in Path("base").iterdir())
    tuned_run(write, f"init.weights={file}")
    before, after = load_file(file), load_file(only_run() / "weights.safetensors")
    assert all(torch.equal(after[name], value) for name, value in before.items() if not name.startswith("head/"))
    new = after.keys() - before.keys()
    assert new
    assert all("lora_" in name and after[name].abs().sum() > 0 for name in new)


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.slow
def test_two_processes_one_of_them_killed_have_the_bits_of_one(shared_folder):
    file = shared_folder / "shared.toml"
    file.write_text(PROCESSES.replace("epochs = 2", "epochs = 30") + TABLE.replace("rev.*", "*ar"))
    with alone(*RUN, *EVERY, "--processes", "2", "--max-restarts", "9", ranks_fork=True) as launcher:
        until(lambda: list(Path("runs").glob("*/checkpoints/0*")))
        os.kill(children(launcher.process.pid)[0], signal.SIGKILL)
        assert ended([launcher]) == [0]
    assert main([*RUN, "--set", "run.directory=whole"]) == 0
    assert weights_bytes(only_run()) == weights_bytes(only_run("whole"))
    assert len(summary_of(only_run())["resumed_from"]) == 1


def test_a_run_is_loaded_with_its_adapters_and_exported_merged(write, tmp_path):
    tuned_run(write)
    network = petra_graph.load(str(only_run()))
    assert any("lora_A" in name for name in network.state_dict())
    for form, file in (("safetensors", "safetensors"), ("torch-export", "program.pt2")):
        assert main(["export", str(only_run()), "--format", form, "--output", str(tmp_path / file)]) == 0
    merged = load_file(tmp_path / "safetensors")
    assert not any("lora_" in name for name in merged)
    samples = torch.randint(256, (4, *network.facts.shape), dtype=torch.uint8)
    network.eval()
    program = torch.export.load(tmp_path / "program.pt2").module()
    with torch.no_grad():
        assert torch.allclose(program(samples), network(samples), atol=1e-5)
    assert not any("lora_" in name for name in program.state_dict())


def test_a_frozen_head_trains_the_rest(write):
    tuned_run(write, table='\n[finetune]\ntrained = ["*"]\nfrozen = ["head"]\n')
    assert json.loads((only_run() / "summary.json").read_text())["status"] == "done"
