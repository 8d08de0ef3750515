"""Replicas are one pipeline with a larger micro-batch, cut by rows."""

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.cli.main import main
from tests.support.forks import RUN, ended, ranks, under_way, until
from tests.support.runs import events, only_run, overrides, summary_of, weights_bytes

pytestmark = pytest.mark.processes
EXACT = overrides("run.epochs=2", "precision.compute=float64", 'data.options.dtype="float64"')
TWICE = overrides("partition.replicas=2")
TOLERANCE = 1e-10


def losses(directory) -> list[float]:
    return [event["value"] for event in events(directory) if event["name"] in {"train/loss", "test/loss"}]


def weights(name) -> dict[str, torch.Tensor]:
    return load_file(only_run(name) / "weights.safetensors")


def run(processes: int, name: str, *settings: str) -> None:
    words = (*RUN, *settings, "--set", f"run.directory={name}")
    if processes == 1:
        assert main(words) == 0
        return
    with ranks(*[(*words, *TWICE)] * processes) as running:
        assert ended(running) == [0] * processes, "".join(one.said for one in running)


def test_two_replicas_of_two_processes_are_one_pipeline_with_twice_the_micro_batch(shared_folder):
    """Three windows of eight micro-batches do not come out even: the last one before a drain is shorter."""
    settings = (*EXACT, *overrides("method.accumulation=3", "data.options.train=128"))
    run(4, "four", *settings)
    run(1, "one", *settings, "--set", "data.batch=16")
    own, theirs = weights("one"), weights("four")
    for name, value in own.items():
        assert (theirs[name] - value).double().norm() <= TOLERANCE * value.double().norm(), name
    assert losses(only_run("four")) == pytest.approx(losses(only_run("one")), rel=TOLERANCE)
    assert summary_of(only_run("four"))["updates"] == summary_of(only_run("one"))["updates"]


def with_convolutions(folder) -> None:
    """Give the specification batch normalisations, in the stem and in reversible blocks."""
    text = (folder / "shared.toml").read_text()
    text = text.replace('"linear-stem"', '"conv-stem"').replace("features = 12", "channels = 4")
    text = text.replace('"rev-mlp"\noptions = { hidden = 12 }', '"rev-basic"')
    (folder / "shared.toml").write_text(text.replace("shape = [6]", "shape = [3, 6, 6]"))


def test_running_statistics_are_the_means_of_all_replicas_and_bits_repeat(shared_folder):
    """Without learning the stem's running mean is that of all rows, whoever had them; its variance is another's."""
    with_convolutions(shared_folder)
    settings = (*EXACT, "--set", "optimizer.options.lr=0")
    for name in ("two", "again"):
        run(2, name, *settings)
    assert weights_bytes(only_run("two")) == weights_bytes(only_run("again"))
    run(1, "one", *settings, "--set", "data.batch=16")
    own, theirs = weights("one"), weights("two")
    (mean,) = [name for name in own if name.startswith("stem/") and name.endswith("running_mean")]
    assert torch.allclose(theirs[mean], own[mean], rtol=TOLERANCE, atol=0)
    assert own[mean].any()


def test_ctrl_c_at_a_process_of_the_other_replica_ends_both(shared_folder):
    with ranks(*[(*RUN, *TWICE)] * 4) as running:
        until(under_way)
        running[2].kill(signal.SIGINT)
        assert ended(running) == [130] * 4
    assert summary_of(only_run())["status"] == "interrupted"


def test_replicas_need_processes_of_their_own(shared_folder, capsys):
    assert main([*RUN, *TWICE]) == 2
    assert "2 replicas need a multiple of 2 processes (got 1)" in capsys.readouterr().err


SOMETIMES = """\
import os
from torch import nn
from petra_graph.blocks import AdditiveCoupling

class Sometimes(AdditiveCoupling):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.always, self.extra, self.never = (nn.Linear(12, 12) for _ in range(3))

    def residual(self, x):
        found = self.always(x).tanh()
        # In training alone: both replicas must compute the same in evaluation, or they are told that they run different things.
        alone = self.training and os.environ.get("RANK") == "0"
        return found + self.extra(x) if alone else found
"""


def test_a_branch_that_one_replica_alone_uses(shared_folder):
    """Its gradient is the mean with nothing; what no replica uses is passed over, weight decay and all."""
    Path("sometimes.py").write_text(SOMETIMES)
    text = Path("shared.toml").read_text()
    Path("shared.toml").write_text(text.replace('"rev-mlp"\noptions = { hidden = 12 }', '"sometimes:Sometimes"'))
    settings = overrides("run.epochs=1", "optimizer.options.weight_decay=0.1")
    run(2, "two", *settings)
    run(1, "none", *settings, "--set", "optimizer.options.lr=1e-30")
    trained, first = weights("two"), weights("none")
    changed = {name for name in first if not torch.equal(trained[name], first[name])}
    assert {"near/always.weight", "near/extra.weight", "far/extra.bias"} <= changed
    assert not [name for name in changed if "never" in name]
