"""Runs with optimizers of matrices: the same bits on any processes and after an interruption; heads and embeddings left to AdamW."""

from __future__ import annotations

from itertools import product

import pytest

from petra_graph.catalog.optimizers.matrix_optimizer import MATRICES
from petra_graph.cli.main import main
from petra_graph.kinds.listener import Listener
from petra_graph.training.prepared_run import prepare
from petra_graph.training.training_run import run
from tests.support.forks import ended, ranks
from tests.support.pairwise import thinned
from tests.support.runs import SPEC, events, only_run, weights_bytes, without_times
from tests.support.stopping import StopAt

HOW = {
    "muon": ["optimizer.name=muon"],
    "muon, windows of one, with the spike": [
        "optimizer.name=corrected",
        "optimizer.options={optimizer='muon', lr=0.01, correction='spike'}",
        "method.accumulation=1",
    ],
    "soap": ["optimizer.name=soap", "optimizer.options.precondition_frequency=3"],
    "soap, lockstep": ["optimizer.name=soap", "method.schedule=lockstep"],
    "soap of one side": ["optimizer.name=soap", "optimizer.options.max_precond_dim=12"],
}


TEXT = SPEC.replace("lr = 0.05", "lr = 0.01")


@pytest.fixture
def spec(write):
    return write("small.toml", TEXT)


def words(settings):
    return [word for setting in settings for word in ("--set", setting)]


def same_runs(one, other):
    assert without_times(one) == without_times(other)
    assert weights_bytes(one) == weights_bytes(other)


CALLS = ("trained 1/4", "trained 2/8", "evaluating 1")
INTERRUPTED = list(product(HOW, CALLS))
USUAL = [INTERRUPTED[at * len(CALLS) + at % len(CALLS)] for at in (0, 2, 4)]


@pytest.mark.parametrize(("how", "call"), thinned(INTERRUPTED, USUAL))
def test_interrupted_and_resumed_is_uninterrupted(spec, whole_run, how, call):
    run(spec, HOW[how], StopAt(call))
    assert main(["run", "--resume", "latest"]) == 0
    same_runs(only_run(), whole_run(TEXT, *HOW[how]))


@pytest.mark.processes
@pytest.mark.parametrize("how", thinned([*HOW], [*HOW][:3:2]))
def test_two_processes_have_the_bits_of_one(spec, whole_run, how):
    with ranks(*[("run", spec, *words(HOW[how]))] * 2) as running:
        assert ended(running) == [0, 0], running[-1].said
    same_runs(only_run(), whole_run(TEXT, *HOW[how]))


@pytest.mark.parametrize("how", thinned([*HOW], [*HOW][::2]))
def test_they_learn_digits(spec, how):
    run(spec, [*HOW[how], "run.epochs=6", "method.accumulation=1"], Listener())
    *_, accuracy = [event["value"] for event in events(only_run()) if event["name"] == "test/top1"]
    assert accuracy > 0.4  # of ten classes, after 66 updates


def test_matrices_of_a_run_are_those_within_the_network(spec):
    named = {}
    for executor in prepare(spec, HOW["muon"]).executors():
        names = {
            id(parameter): f"{node}/{name}"
            for node, block in executor.modules.items()
            for name, parameter in block.named_parameters()
        }
        for group in executor.updater.optimizer.param_groups:
            named |= {names[id(one)]: group.get(MATRICES, False) for one in group["params"]}
    assert {name.split("/")[0] for name, matrix in named.items() if matrix} == {"stem", "rev.0", "rev.1"}
    assert all(
        matrix == (name.endswith("weight") and "norm" not in name)
        for name, matrix in named.items()
        if "head" not in name
    )
    assert not named["head/linear.weight"]
