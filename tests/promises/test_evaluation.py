"""What a run is judged by: its own metrics, weights that are not those that are trained, and samples that are set apart, in whole runs on digits."""

import math
import signal

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.api import Run
from petra_graph.cli.main import main
from petra_graph.inference.saved_run import SavedRun, evaluate_run, open_data
from petra_graph.plugins.callback import Listener
from petra_graph.record import checkpoint
from petra_graph.record.run_directory import read_run
from petra_graph.training.prepare import prepare
from petra_graph.training.run import run
from tests.support.runs import (
    MICRO_BATCHES,
    SPEC,
    named,
    only_run,
    overrides,
    result_of,
    summary_of,
    weights_bytes,
    without_times,
)

# --- metrics ---------------------------------------------------------------------------------------------------------

METRICS = f"""
[[metric]]
name = "{__name__}:F1"
recorded_as = "f1"
[[metric]]
name = "perplexity"
"""
ROUNDING = 1e-9
"""Of values from float64 shares of equal outputs."""


class F1:
    """scikit-learn's, of all samples, kept as torchmetrics' classes keep them."""

    share = True

    def __init__(self, *, average: str = "macro"):
        self.average, self.pairs = average, []

    def update(self, output, target):
        self.pairs += zip(target.tolist(), output.argmax(1).tolist(), strict=True)

    def compute(self):
        from sklearn.metrics import f1_score

        return f1_score(*zip(*self.pairs, strict=True), average=self.average)


def test_they_are_scikit_learns_of_the_networks_own_outputs(whole_run):
    from sklearn.metrics import f1_score

    directory = whole_run(SPEC + METRICS)
    saved = SavedRun.open(directory)
    network, _ = saved.load()
    test = open_data(saved).test
    samples, targets = test.fetch(range(len(test)), seed=0, epoch=0)
    with torch.no_grad():
        output = network(samples).double()
    predicted, wanted = output.argmax(1).numpy(), targets.numpy()
    found = summary_of(directory)["test"]
    assert found["f1"] == pytest.approx(f1_score(wanted, predicted, average="macro"), rel=ROUNDING)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-5)
    assert evaluate_run(saved).means == found, "to the bit"
    assert Run(directory).metrics("test/f1")[-1] == (2 * MICRO_BATCHES, found["f1"])
    in_sevens = evaluate_run(SavedRun.open(directory, ["data.evaluation_batch=7"])).means
    assert in_sevens["f1"] == found["f1"]


def test_the_best_checkpoint_follows_the_declared_direction(whole_run):
    kept = ("checkpoint.best=test/perplexity", "checkpoint.keep=1")
    directory = whole_run(SPEC + METRICS, *kept, "run.epochs=4", "optimizer.options.lr=0.3")
    values = [value for _, value in Run(directory).metrics("test/perplexity")]
    best = min(range(4), key=values.__getitem__)
    assert checkpoint.numbers(directory) == sorted({4 * MICRO_BATCHES, (best + 1) * MICRO_BATCHES}, reverse=True)
    found = read_run(directory).best
    assert (found.metric, found.epoch) == ("test/perplexity", best + 1)
    assert SavedRun.open(directory).load("best")[1].endswith(f"{(best + 1) * MICRO_BATCHES}")


# --- weights that are evaluated and not trained ----------------------------------------------------------------------

MODULE = '''\
import torch
from petra_graph.plugins import Callback

class ScheduleFree(torch.optim.Optimizer):
    """z <- z - lr * gradient(y);  x <- mean of all z;  y = (1 - beta) z + beta x, which is the parameter."""

    def __init__(self, groups, *, lr: float = 0.5, beta: float = 0.9):
        super().__init__([*groups.decayed, *groups.undecayed], {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for y in group["params"]:
                if y.grad is None:
                    continue
                state = self.state[y]
                if not state:
                    state.update(x=y.clone(), z=y.clone(), steps=0)
                state["steps"] += 1
                state["z"].sub_(y.grad, alpha=group["lr"])
                state["x"].lerp_(state["z"], 1 / state["steps"])
                y.copy_(state["z"].lerp(state["x"], group["beta"]))

    def evaluated_weights(self, parameter):
        return self.state.get(parameter, {}).get("x", parameter)

class Sees(Callback):
    reads_weights = True
    def started(self, run):
        self.directory = run.directory
    def evaluated_weights(self, epoch, weights):
        torch.save({name: value.clone() for name, value in weights.items()}, self.directory / f"seen-{epoch}.pt")
'''
OPTIMIZER = '[optimizer]\nname = "local_free:ScheduleFree"\n'
FREE = SPEC.replace("[optimizer]\noptions = { lr = 0.05 }\n", OPTIMIZER)


@pytest.fixture
def schedule_free(write):
    assert OPTIMIZER in FREE
    write("local_free.py", MODULE)
    kept = '[checkpoint]\nevery = "1 epoch"\nbest = "test/top1"\n'
    return write("free.toml", FREE + kept + named("callback", "local_free:Sees"))


def tensors_of(directory, kind):
    """The tensors of a kind in the last checkpoint, of all stages."""
    at, found = 2 * MICRO_BATCHES, {}
    for file in checkpoint.read_manifest(directory, at).files:
        found |= checkpoint.read_stage(directory, at, file)[0]
    return {name: tensor for name, tensor in found.items() if name.startswith(f"{kind}/")}


def test_the_training_is_the_same_with_any_number_of_evaluations(schedule_free):
    assert main(["run", schedule_free]) == 0
    assert main(["run", schedule_free, *overrides("run.evaluate_every=2", "run.directory=once")]) == 0
    for kind in ("parameters", "optimizer", "buffers"):
        one, other = tensors_of(only_run(), kind), tensors_of(only_run("once"), kind)
        assert one.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert weights_bytes(only_run()) == weights_bytes(only_run("once"))
    directories = only_run(), only_run("once")
    one, other = ([event for event in without_times(each) if event[2] == "train/loss"] for each in directories)
    assert one == other


def test_files_have_evaluated_weights_and_checkpoints_trained_ones(schedule_free):
    assert main(["run", schedule_free]) == 0
    directory = only_run()
    weights, optimizer = load_file(directory / "weights.safetensors"), tensors_of(directory, "optimizer")
    trained, seen = tensors_of(directory, "parameters"), torch.load(directory / "seen-2.pt")
    for name in (name.removeprefix("parameters/") for name in trained):
        assert torch.equal(weights[name], optimizer[f"optimizer/{name}/x"])
        assert torch.equal(weights[name], seen[name])
    assert not all(torch.equal(weights[name.removeprefix("parameters/")], value) for name, value in trained.items())
    saved = SavedRun.open(directory)
    assert evaluate_run(saved).means == summary_of(directory)["test"]
    assert evaluate_run(saved, which="latest").means == summary_of(directory)["test"]
    best = max(value for _, _, name, value in without_times(directory) if name == "test/top1")
    assert evaluate_run(saved, which="best").means["top1"] == best


def test_no_sample_is_both_trained_on_and_validated(spec):
    opened = prepare(spec, [SHARE, "data.batch=10", "data.options.crop_padding=0"]).opened
    assert (len(opened.train), len(opened.validation)) == (1294, 144)
    held = opened.evaluation(opened.validation)
    assert sum(map(len, held.parts)) == 144
    own = {id(opened.train): set(), id(opened.validation): set()}
    for batches in (opened.epoch(0), opened.epoch(1), held):
        for part in batches.parts:
            own[id(batches.split)].update(batches.split.rows[part].tolist())
    trained, validated = own.values()
    assert trained.isdisjoint(validated)
    # An epoch of 129 micro-batches leaves out 4 samples, and two epochs seldom the same ones.
    assert len(trained) >= 1290
    assert validated == set(opened.validation.rows.tolist())


# --- validation ------------------------------------------------------------------------------------------------------

SHARE = "data.validation=0.1"
BEST = ("checkpoint.best=validation/top1", "optimizer.options.lr=0.3")
"""With this rate, the best epoch is not the last one."""


def test_the_test_comes_once_at_the_end_with_the_best_weights(spec):
    run(spec, [SHARE, *BEST, "run.epochs=5"], Listener())
    found, recorded = read_run(only_run()), Run(only_run())
    values = [value for _, value in recorded.metrics("validation/top1")]
    best = values.index(max(values)) + 1
    assert best < 5
    summary = summary_of(only_run())
    assert summary["test_weights"] == {"weights": "best", "epoch": best}
    assert (found.best.metric, found.best.epoch) == ("validation/top1", best)
    assert len(recorded.metrics("validation/loss")) == 5
    assert [value for _, value in recorded.metrics("test/loss")] == [summary["test"]["loss"]]
    saved = SavedRun.open("latest")
    of_test = evaluate_run(saved, which="best")
    assert of_test.means == summary["test"], "to the bit"
    assert of_test.changed == [], "the samples that the validation left are those of the training"
    of_validation = evaluate_run(saved, split="validation")
    assert of_validation.means == summary["validation"], "to the bit, with the last weights"
    assert of_validation.changed == []
    assert evaluate_run(saved, split="train").samples == 1294
    # Nothing of the end is in the weights of the run: they are the last ones.
    run(spec, [SHARE, BEST[1], "run.epochs=5", "run.directory=last"], Listener())
    assert weights_bytes(only_run("last")) == weights_bytes(only_run())
    assert summary_of(only_run("last"))["test_weights"] == {"weights": "last", "epoch": 5}
    assert summary_of(only_run("last"))["test"] == evaluate_run(SavedRun.open(only_run())).means


def test_a_run_that_is_interrupted_in_its_test_is_tested_when_resumed(spec, whole_run):
    class InTheTest(Listener):
        def testing(self, weights):
            signal.raise_signal(signal.SIGINT)

    assert run(spec, [SHARE, *BEST], InTheTest()).interrupted is not None
    assert summary_of(only_run())["test"] is None
    assert main(["run", "--resume", "latest"]) == 0
    assert result_of(only_run()) == result_of(whole_run(SPEC, SHARE, *BEST))


STOP = "callback=[{name='early-stopping', options={metric='test/loss'}}]"


@pytest.mark.parametrize(
    ("settings", "place", "said"),
    [
        (["data.validation=0.0001"], "data.validation", "a share of 0.0001 of 1,438 training samples is no sample"),
        (["data.validation=dev"], "data.validation", 'has no split "dev"'),
        ([SHARE, "checkpoint.best=test/top1"], "checkpoint.best", "epochs read the validation data"),
        (["checkpoint.best=validation/top1"], "checkpoint.best", "epochs read the test data"),
        ([SHARE, STOP], "callback", "epochs read the validation data"),
    ],
)
def test_what_cannot_be_is_refused_before_the_training(spec, capsys, settings, place, said):
    assert main(["run", spec, "--dry-run", *overrides(*settings)]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert place in printed
