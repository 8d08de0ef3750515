"""Callbacks of other packages: the order of their calls, what they may do, and how they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from petra_graph.cli.main import main
from petra_graph.errors import PluginError, RunFailed
from petra_graph.kinds.listener import Listener
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.training.training_run import run
from tests.support.forks import RUN, ended, ranks
from tests.support.forks import SPEC as SHARED
from tests.support.loggers import named
from tests.support.runs import SPEC as LONG
from tests.support.runs import only_run, summary_of, weights_bytes

SPEC = LONG.replace("epochs = 2\n", "epochs = 2\nmicro_batches = 2\n")
ENTRIES = """\
[petra_graph.callbacks]
notes = noting:NOTES
more-notes = noting:NOTES
fails = noting:FAILS
stops = noting:STOPS
quiet = noting:QUIET
zeros = noting:ZEROS
wrong = noting:WRONG
reads = noting:READS
reads-not = noting:READS_NOT
[petra_graph.loggers]
notes = noting:LOGGER
"""
DECLARED = """\
from attrs import frozen
from petra_graph.kinds.callback import CallbackDeclaration
from petra_graph.kinds.declaration import option
from petra_graph.kinds.logger import LoggerDeclaration

@frozen(kw_only=True)
class Options:
    call: str = option("where it fails", default="")

def declared(build, **more):
    return CallbackDeclaration(summary="For a test.", build=f"noting_code:{build}", **more)

NOTES = declared("Notes", options=Options)
FAILS = declared("Fails", options=Options, reads_weights=True)
READS = declared("Reads", reads_weights=True)
READS_NOT = declared("Reads")
STOPS = declared("Stops", changes="length")
QUIET = declared("Stops")
ZEROS = declared("Zeros", changes="weights")
WRONG = declared("Notes", changes="everything")
LOGGER = LoggerDeclaration(summary="For a test.", build="noting_code:Logger")
"""
CODE = """\
from pathlib import Path
import petra_graph
import torch
from safetensors.torch import save_file
from petra_graph.kinds.callback import Callback, Companion

def note(text):
    with Path("notes").open("a") as file:
        print(text, file=file)

class Logger:
    def __init__(self, options, run):
        note(f"logger {run.name} {run.resumed_at}")
    def record(self, *, epoch, step, values):
        note(f"logger {epoch} {step} {sorted(values)[0]}")
    def close(self):
        note("logger closed")

class Notes(Callback):
    def __init__(self, options):
        self.count = 0
    def started(self, run): note(f"started {run.name}")
    def trained(self, epoch, micro_batches, means):
        self.count += 1
        note(f"trained {epoch}/{micro_batches}")
    def evaluating(self, epoch): note(f"evaluating {epoch}")
    def evaluated(self, epoch, first, outputs, targets): note(f"evaluated {epoch} {first} {list(outputs.shape)} {len(targets)}")
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
    def __init__(self, options):
        self.call = options.call
    def started(self, run): self.fail("started")
    def trained(self, epoch, micro_batches, means): self.fail("trained")
    def evaluated_weights(self, epoch, weights): self.fail("evaluated_weights")
    def epoch_ended(self, report): self.fail("epoch_ended")
    def stopped(self): self.fail("stopped")
    def ended(self, weights, kept):
        self.fail("ended")
        return {}
    def at_stage(self, parameters):
        self.fail("at_stage")
        return Part(self)
    def fail(self, call):
        if call == self.call:
            raise KeyError(call)

class Part(Companion):
    def __init__(self, owner): self.owner = owner
    def updated(self, updates): self.owner.fail("updated")

class Reads(Callback):
    def __init__(self, options): pass
    def started(self, run): self.run = run
    def evaluated_weights(self, epoch, weights):
        save_file(dict(weights), f"epoch{epoch}.safetensors")
        network = petra_graph.load(self.run.directory, weights=weights)
        assert all(torch.equal(value, weights[name]) for name, value in weights_of(network).items())
        note(f"read {epoch} {network.facts.classes}")

def weights_of(network):
    return {f"{name.replace('/', '.')}/{key}": value for name, block in network.nodes.items() for key, value in block.state_dict().items()}

class Stops(Callback):
    def __init__(self, options): pass
    def stops(self): return "enough"

class Zeros(Callback):
    def __init__(self, options): pass
    def at_stage(self, parameters): return Zero(parameters)

class Zero(Companion):
    def __init__(self, parameters): self.parameters = parameters
    def updated(self, updates):
        for parameter in self.parameters.values():
            parameter.zero_()
"""


@pytest.fixture(autouse=True)
def installed(install):
    install("noting", ENTRIES, noting=DECLARED, noting_code=CODE)


def test_the_order_of_calls(write):
    text = SPEC.replace("epochs = 2", "epochs = 1").replace("log_every = 4", "log_every = 11")
    text = text.replace("batch = 128", "batch = 700\nevaluation_batch = 200")
    run(write("small.toml", text + named("logger", "notes") + named("callback", "notes", "more-notes")), (), Listener())
    twice = [
        "started small",
        "trained 1/1",
        "trained 1/2",
        "evaluating 1",
        "evaluated 1 0 [200, 10] 200",
        "evaluated 1 200 [159, 10] 159",
        "logger 1 2 learning_rate",
        "ended 1",
        "stopped",
        "weights 12 0",
        "logger closed",
    ]
    expected = [line for line in twice for _ in range(1 if line.startswith("logger") else 2)]
    assert Path("notes").read_text().splitlines() == ["logger small None", *expected]


def test_a_state_goes_on(write):
    run(write("small.toml", LONG + named("callback", "notes")), ["checkpoint.every=2 updates"], Listener())
    for path in sorted((only_run() / "checkpoints").iterdir()):
        position = json.loads((path / "manifest.json").read_text())["position"]
        assert position["callbacks"] == {"notes": {"count": position["micro_batches"]}}
    Path("notes").unlink()
    assert main(["run", "--resume", "latest", "--set", "run.epochs=3"]) == 0
    assert Path("notes").read_text().splitlines()[:3] == ["started small", "restored 22", "trained 3/1"]


@pytest.mark.parametrize(
    "call", ["started", "trained", "evaluated_weights", "epoch_ended", "stopped", "ended", "at_stage", "updated"]
)
def test_a_callback_that_fails_is_named(write, call):
    with pytest.raises(RunFailed) as caught:
        run(write("small.toml", SPEC + named("callback", "fails")), [f"callback.fails.options.call={call}"], Listener())
    (problem,) = caught.value.problems
    assert problem.message.endswith(f"callback \"fails\" failed: KeyError: '{call}'")
    assert "noting_code.py:" in problem.hint
    assert summary_of(only_run())["status"] == "failed"
    assert "KeyError" in (only_run() / "failure.txt").read_text()


@pytest.mark.processes
def test_a_callback_that_fails_among_processes(write, site):
    write("shared.toml", SHARED + named("callback", "fails") + 'options = { call = "updated" }\n')
    with ranks(RUN, RUN, paths=[site]) as running:
        assert ended(running) == [1, 1]
    said = "".join(rank.said for rank in running)
    assert said.count("callback \"fails\" failed: KeyError: 'updated'") == 1
    assert "Traceback" not in said
    assert summary_of(only_run())["status"] == "failed"


def test_weights_after_each_evaluation(write):
    path = write("small.toml", SPEC)
    run(path, ["run.directory=plain"], Listener())
    run(path, ['callback=[{ name = "reads" }]', "run.directory=read"], Listener())
    assert Path("notes").read_text().splitlines() == ["read 1 10", "read 2 10"]
    assert weights_bytes(only_run("read")) == weights_bytes(only_run("plain"))
    assert Path("epoch2.safetensors").read_bytes() == (only_run("read") / "weights.safetensors").read_bytes()
    assert Path("epoch1.safetensors").read_bytes() != Path("epoch2.safetensors").read_bytes()


@pytest.mark.processes
def test_weights_after_each_evaluation_of_two_processes(write, site):
    write("shared.toml", SHARED + named("callback", "reads"))
    with ranks(RUN, RUN, paths=[site]) as running:
        assert ended(running) == [0, 0], running[1].said
    assert Path("notes").read_text().splitlines() == ["read 1 5", "read 2 5"]
    assert Path("epoch2.safetensors").read_bytes() == (only_run() / "weights.safetensors").read_bytes()


def test_what_a_callback_may_change(write):
    path = write("small.toml", SPEC)
    run(path, ["run.directory=plain"], Listener())
    run(path, ['callback=[{ name = "stops" }]', "run.directory=stops"], Listener())
    summary = summary_of(only_run("stops"))
    assert (summary["epochs"], summary["stopped_early"]) == (1, "after epoch 1: stops: enough")
    run(path, ['callback=[{ name = "zeros" }]', "run.directory=zeros"], Listener())
    assert weights_bytes(only_run("zeros")) != weights_bytes(only_run("plain"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("quiet", 'it defines `stops`, which is never asked: its declaration says changes = "nothing", not "length"'),
        (
            "reads-not",
            "it defines `evaluated_weights`, which is never called: its declaration says reads_weights = False",
        ),
    ],
)
def test_what_a_declaration_does_not_let_be_called_is_refused(write, capsys, name, said):
    """It was passed over in silence."""
    assert main(["run", write("small.toml", SPEC + named("callback", name)), "--dry-run"]) == 4
    assert f'callback "{name}" of noting is broken: {said}' in capsys.readouterr().err


OF_KERAS = """\
from petra_graph.plugins import Callback

class OfKeras(Callback):
    def __init__(self, options): pass
    def on_epoch_end(self, epoch, logs=None): pass
"""


@pytest.mark.parametrize("more", [["--dry-run"], ["--fast-dev-run"]])
def test_a_method_that_no_run_calls_is_warned_of(write, capsys, more):
    """The run did nothing of what its author meant, in silence."""
    write("keeping.py", OF_KERAS)
    assert main(["run", write("small.toml", SPEC + named("callback", "keeping:OfKeras")), *more]) == 0
    said = 'warning: callback "keeping:OfKeras" defines `on_epoch_end`, which no run calls'
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "said"),
    [("torch.ones(2)", "Object of type Tensor is not JSON serializable"), ("{1, 2}", "Object of type set is not")],
)
def test_a_state_that_is_not_json_is_the_callback_s(write, capsys, value, said):
    """Python's json/encoder.py was blamed."""
    code = f"import torch\nfrom petra_graph.plugins import Callback\n\nclass Keeps(Callback):\n    def __init__(self, options): pass\n    def state(self): return {{'x': {value}}}\n    def restore(self, state): pass\n"
    write("keeping.py", code)
    spec = write("small.toml", SPEC + named("callback", "keeping:Keeps"))
    assert main(["run", spec, "--set", "checkpoint.every=2 updates"]) == 1
    printed = capsys.readouterr().err
    assert f'callback "keeping:Keeps": what Keeps.state returns cannot be in a checkpoint: {said}' in printed
    assert "    help: return None, numbers, texts, lists, and tables with texts as keys" in printed
    assert "encoder.py" not in printed


@pytest.mark.parametrize(
    ("companion", "said"),
    [
        ("object()", "its at_stage returns an object, not a Companion or None"),
        ("Part()", "its Part.updated() cannot be called as updated(updates): too many positional arguments"),
    ],
)
def test_a_companion_that_is_none(write, capsys, companion, said):
    code = f"from petra_graph.plugins import Callback, Companion\n\nclass Part(Companion):\n    def updated(self): pass\n\nclass Keeps(Callback):\n    def __init__(self, options): pass\n    def at_stage(self, parameters): return {companion}\n"
    write("keeping.py", code)
    assert main(["run", write("small.toml", SPEC + named("callback", "keeping:Keeps"))]) == 1
    assert f'callback "keeping:Keeps" is broken: {said}' in capsys.readouterr().err


def test_a_declaration_that_is_wrong(write):
    with pytest.raises(PluginError, match="has changes = 'everything', not one of nothing, length, weights"):
        check_spec(write("small.toml", SPEC + named("callback", "wrong")))


WATCHED = """\
import torch
from petra_graph.plugins import Callback, Companion


class Part(Companion):
    def __init__(self, write, parameters): self.write, self.parameters = write, parameters
    def updated(self, updates): self.write(self.parameters)


class InItsCompanion(Callback):
    def __init__(self, options): pass
    def at_stage(self, parameters): return Part(self.write, parameters)
    def write(self, parameters):
        for parameter in parameters.values(): parameter.mul_(0.9)


class PastTheVersion(InItsCompanion):
    def write(self, parameters):
        for parameter in parameters.values(): parameter.data.mul_(0.9)


class AnotherMemory(InItsCompanion):
    def write(self, parameters):
        for parameter in parameters.values(): parameter.data = parameter.detach().clone()


class AfterAnEpoch(Callback):
    def __init__(self, options): self.parameters = {}
    def at_stage(self, parameters): self.parameters |= parameters
    @torch.no_grad()
    def epoch_ended(self, report):
        self.parameters["head/linear.bias"].zero_()


class OfTheFile(Callback):
    def __init__(self, options): pass
    def ended(self, weights, kept):
        weights["head/linear.bias"].zero_()
        return {}


class OfOutputs(Callback):
    changes = "length"
    def __init__(self, options): pass
    def evaluated(self, epoch, first, outputs, targets): outputs.exp_()


class Reads(InItsCompanion):
    # copies, sums and averages what it is given
    def __init__(self, options): self.averages, self.sums = {}, []
    def write(self, parameters):
        for name, parameter in parameters.items():
            self.averages[name] = self.averages.get(name, parameter.detach().clone()).lerp_(parameter, 0.1)
    def evaluated(self, epoch, first, outputs, targets): self.sums.append(outputs.softmax(1).sum() + targets.sum())
    def ended(self, weights, kept): return {"averages.safetensors": self.averages}


class LeavesGradientsOff(Callback):
    changes = "weights"
    def __init__(self, options): pass
    def started(self, run): torch.set_grad_enabled(False)


class LeavesFloat64(Callback):
    def __init__(self, options): pass
    def epoch_ended(self, report): torch.set_default_dtype(torch.float64)


class StopsByTruth(Callback):
    changes = "length"
    def __init__(self, options): pass
    def stops(self): return False
"""


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("InItsCompanion", "its updated wrote to "),
        ("PastTheVersion", "its updated wrote to "),
        ("AnotherMemory", "its updated wrote to "),
        ("AfterAnEpoch", 'its epoch_ended wrote to "head/linear.bias", and its declaration says changes = "nothing"'),
        ("OfTheFile", 'its ended wrote to "head/linear.bias", and its declaration says changes = "nothing"'),
        ("OfOutputs", 'its evaluated wrote to "outputs", and its declaration says changes = "length"'),
    ],
)
def test_a_callback_that_writes_to_what_it_may_read_is_named(write, capsys, name, written):
    """Training came to another accuracy, in silence."""
    write("watched_callbacks.py", WATCHED)
    spec = write("small.toml", SPEC + named("callback", f"watched_callbacks:{name}"))
    assert main(["run", spec]) == 4
    said = capsys.readouterr().err
    assert f'callback "watched_callbacks:{name}" breaks a promise (changes): {written}' in said
    assert "    help: copy what is to be changed, as in parameter.detach().clone()" in said
    assert "Traceback" not in said


def test_a_callback_that_reads_is_let_be(write):
    write("watched_callbacks.py", WATCHED)
    run(write("small.toml", SPEC), ["run.directory=plain"], Listener())
    run(write("reads.toml", SPEC + named("callback", "watched_callbacks:Reads")), ["run.directory=reads"], Listener())
    assert weights_bytes(only_run("reads")) == weights_bytes(only_run("plain"))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("LeavesGradientsOff", "after its started, torch.is_grad_enabled() is False"),
        ("LeavesFloat64", "after its epoch_ended, torch.get_default_dtype() is torch.float64"),
    ],
)
def test_a_setting_that_a_callback_leaves_changed_is_named_with_it(write, capsys, name, found):
    """Autograd that was off from the start on let a run end as done, with the weights of its beginning."""
    write("watched_callbacks.py", WATCHED)
    spec = write("small.toml", SPEC + named("callback", f"watched_callbacks:{name}"))
    assert main(["run", spec]) == 4
    said = capsys.readouterr().err
    assert f'callback "watched_callbacks:{name}" is broken: {found}, for all other code, too\n' in said
    assert "    help: set it within `with`, where it is needed" in said
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_a_reason_to_stop_that_is_no_text_is_refused(write, capsys):
    """True ended the run with 0 epochs, and it was done."""
    write("watched_callbacks.py", WATCHED)
    spec = write("small.toml", SPEC + named("callback", "watched_callbacks:StopsByTruth"))
    assert main(["run", spec]) == 4
    said = capsys.readouterr().err
    fault = 'its stops returns False, not a text: the reason to stop, or "" to continue'
    assert f'callback "watched_callbacks:StopsByTruth" is broken: {fault}' in said
