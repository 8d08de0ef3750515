"""Callbacks of other packages: the order of their calls, what they may do, and how they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from petra_graph.errors import RunFailed
from petra_graph.plugins.callback import Listener
from petra_graph.training.run import run
from tests.support.runs import SPEC as LONG
from tests.support.runs import named, only_run, summary_of, weights_bytes

SPEC = LONG.replace("epochs = 2\n", "epochs = 2\nmicro_batches = 2\n")
ENTRIES = """\
[petra_graph.callbacks]
notes = noting_code:Notes
more-notes = noting_code:Notes
fails = noting_code:Fails
stops = noting_code:Stops
zeros = noting_code:Zeros
reads = noting_code:Reads
log = noting_code:Log
"""
CODE = """\
from pathlib import Path
import petra_graph
import torch
from safetensors.torch import save_file
from petra_graph.plugins.callback import Callback, Companion

def note(text):
    with Path("notes").open("a") as file:
        print(text, file=file)

class Log(Callback):
    def started(self, run):
        note(f"log {run.spec['name']} {run.resumed_at}")
    def record(self, *, epoch, step, values):
        note(f"log {epoch} {step} {sorted(values)[0]}")
    def close(self):
        note("log closed")

class Notes(Callback):
    def __init__(self, *, call: str = ""):
        self.count = 0
    def started(self, run): note(f"started {run.name}")
    def trained(self, epoch, micro_batches, means):
        self.count += 1
        note(f"trained {epoch}/{micro_batches}")
    def evaluating(self, epoch): note(f"evaluating {epoch}")
    def epoch_ended(self, report): note(f"ended {report.epoch}")
    def stopped(self): note("stopped")
    def state(self): return {"count": self.count}
    def restore(self, state):
        self.count = state["count"]
        note(f"restored {self.count}")
    def ended(self, weights, kept):
        note(f"weights {len(weights)} {len(kept)}")
        return {}

class Fails(Callback):
    reads_weights = True
    def __init__(self, *, call: str = ""):
        self.call = call
        if call != "updated":
            setattr(self, call, self.fail)
    def at_stage(self, parameters): return Part() if self.call == "updated" else None
    def fail(self, *given, **named): raise KeyError(self.call)

class Part(Companion):
    def updated(self, updates): raise KeyError("updated")

class Reads(Callback):
    reads_weights = True
    def started(self, run): self.run = run
    def evaluated_weights(self, epoch, weights):
        save_file(dict(weights), f"epoch{epoch}.safetensors")
        network = petra_graph.load(self.run.directory, weights=weights)
        assert all(torch.equal(value, weights[name]) for name, value in weights_of(network).items())
        note(f"read {epoch} {network.facts.classes}")

def weights_of(network):
    return {f"{name.replace('/', '.')}/{key}": value for name, block in network.nodes.items() for key, value in block.state_dict().items()}

class Stops(Callback):
    changes = "length"
    def stops(self): return "enough"

class Zeros(Callback):
    changes = "weights"
    def at_stage(self, parameters): return Zero(parameters)

class Zero(Companion):
    def __init__(self, parameters): self.parameters = parameters
    def updated(self, updates):
        for parameter in self.parameters.values():
            parameter.zero_()
"""


@pytest.fixture(autouse=True)
def installed(install):
    install("noting", ENTRIES, noting_code=CODE)


def test_the_order_of_calls(write):
    text = SPEC.replace("epochs = 2", "epochs = 1").replace("log_every = 4", "log_every = 11")
    text = text.replace("batch = 128", "batch = 700")
    run(write("small.toml", text + named("callback", "log", "notes", "more-notes")), (), Listener())
    twice = [
        "started small",
        "trained 1/1",
        "trained 1/2",
        "evaluating 1",
        "log 1 2 learning_rate",
        "ended 1",
        "stopped",
        "weights 12 0",
        "log closed",
    ]
    expected = [line for line in twice for _ in range(1 if line.startswith("log ") else 2)]
    assert Path("notes").read_text().splitlines() == ["log small None", *expected]


def test_a_state_goes_on(write):
    run(write("small.toml", LONG + named("callback", "notes")), ["checkpoint.every=2 updates"], Listener())
    for path in sorted((only_run() / "checkpoints").iterdir()):
        position = json.loads((path / "manifest.json").read_text())["position"]
        assert position["callbacks"] == {"notes": {"count": position["micro_batches"]}}
    Path("notes").unlink()
    assert main(["run", "--resume", "latest", "--set", "run.epochs=3"]) == 0
    assert Path("notes").read_text().splitlines()[:3] == ["started small", "restored 22", "trained 3/1"]


CALLS = ("started", "trained", "evaluated_weights", "record", "epoch_ended", "stopped", "ended", "at_stage", "updated")


@pytest.mark.parametrize("call", [*CALLS, "close"])
def test_a_callback_that_fails_is_named(write, call):
    with pytest.raises(RunFailed) as caught:
        run(write("small.toml", SPEC + named("callback", "fails")), [f"callback.fails.options.call={call}"], Listener())
    (problem,) = caught.value.problems
    assert problem.message.endswith(f"KeyError: '{call}' (callback \"fails\")")
    assert summary_of(only_run())["status"] == "failed"
    assert 'noting_code.py", line' in (only_run() / "failure.txt").read_text()


def test_callbacks_read_weights_after_each_evaluation_stop_a_run_and_change_weights(write):
    path = write("small.toml", SPEC)
    run(path, ["run.directory=plain"], Listener())
    run(path, ['callback=[{ name = "reads" }]', "run.directory=read"], Listener())
    assert Path("notes").read_text().splitlines() == ["read 1 10", "read 2 10"]
    assert weights_bytes(only_run("read")) == weights_bytes(only_run("plain"))
    assert Path("epoch2.safetensors").read_bytes() == (only_run("read") / "weights.safetensors").read_bytes()
    assert Path("epoch1.safetensors").read_bytes() != Path("epoch2.safetensors").read_bytes()
    run(path, ['callback=[{ name = "stops" }]', "run.directory=stops"], Listener())
    summary = summary_of(only_run("stops"))
    assert (summary["epochs"], summary["stopped_early"]) == (1, "after epoch 1: stops: enough")
    run(path, ['callback=[{ name = "zeros" }]', "run.directory=zeros"], Listener())
    assert weights_bytes(only_run("zeros")) != weights_bytes(only_run("plain"))
