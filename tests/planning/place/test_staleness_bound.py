"""`method.max_staleness`: the least accumulation that keeps it, in plans, runs and what they leave behind."""

from __future__ import annotations

import json
import tomllib

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.kinds.listener import Listener
from petra_graph.planning.compare_plans import compare
from petra_graph.planning.plan_spec import Planner, plan
from petra_graph.training.training_run import run
from tests.support.runs import only_run, summary_of, weights_bytes

SPEC = """
name = "bounded"

[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 8 }

[[graph.node]]
name = "body"
block = "rev-mlp"
repeat = 3
options = { hidden = 8 }

[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }

[method]
schedule = "1f1b"
max_staleness = 1.0

[optimizer]
name = "sgd"
options = { lr = 0.05 }

[lr_schedule]
scaling = "goyal"

[data]
name = "digits"
batch = 32

[run]
epochs = 1
evaluation_batches = 1
"""
DEPTHS = {"1f1b": 5, "lockstep": 9}
SAID = "max_staleness = 1 sets accumulation = 4: an update averages 128 samples, an epoch has 11 updates, and the learning rate is 0.025"


@pytest.fixture
def spec(write):
    return write("bounded.toml", SPEC)


@pytest.fixture(scope="module")
def planner(tmp_path_factory):
    file = tmp_path_factory.mktemp("bounded") / "bounded.toml"
    file.write_text(SPEC)
    return Planner(str(file))


@given(bound=st.floats(0.25, 20), schedule=st.sampled_from(sorted(DEPTHS)))
def test_it_is_the_least(planner, bound, schedule):
    method = planner.spec.method
    found = planner.plan(evolve(planner.spec, method=evolve(method, max_staleness=bound, schedule=schedule)))
    k, delay = found.spec.method.accumulation, DEPTHS[schedule] - 1
    assert delay / k <= bound
    assert k == 1 or delay / (k - 1) > bound
    stages = found.document(with_timeline=False, with_warnings=False)["stages"]
    assert max(stage["staleness"] for stage in stages) == delay / k


@pytest.mark.parametrize(
    ("overrides", "k"),
    [
        (["method.schedule=auto"], 1),  # one device: no depth is needed
        (["method.schedule=sequential"], 1),
        (["method.name=gpipe", "method.schedule=fill-drain"], 1),
        (["partition.stages=3"], 2),
        (["method.max_staleness=100"], 1),
    ],
)
def test_the_stages_that_follow_decide(spec, overrides, k):
    assert plan(spec, overrides).spec.method.accumulation == k


def test_every_method_of_a_comparison_keeps_it(spec):
    rows = compare(Planner(spec))["rows"]
    delayed = [row["staleness"] for row in rows if row["staleness"]]
    assert delayed
    assert max(delayed) <= 1
    notes = {(row["method"], row["schedule"]): row["note"] for row in rows}
    assert notes["petra", "1f1b"] == "accumulation 4"
    assert notes["petra", "lockstep"] == "accumulation 8"
    assert notes["backprop", "sequential"] == "accumulation 1"


def test_a_run_says_what_follows_and_resolves_to_it(spec, capsys):
    assert main(["run", spec, "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "accumulation: 4" in said
    assert "updates: 11" in said
    assert said[-1] == SAID
    assert main(["run", spec, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [SAID]
    for more in ([], ["--verbose"]):
        assert main(["plan", spec, *more]) == 0
        assert " ".join(capsys.readouterr().out.split()).count(SAID) == 1
    assert main(["run", spec]) == 0
    assert SAID in capsys.readouterr().err
    directory = only_run()
    resolved = tomllib.loads((directory / "resolved.toml").read_text())
    assert resolved["method"]["accumulation"] == 4
    assert "max_staleness" not in resolved["method"]
    assert summary_of(directory)["updates"] == 11


def trained(file):
    return weights_bytes(run(file, [], Listener()).summary["directory"])


def test_the_advice_of_a_larger_bound_names_the_bound(spec, capsys):
    assert main(["run", spec, "--dry-run", "--set", "method.max_staleness=2"]) == 0
    warned = capsys.readouterr().err
    assert "method.max_staleness = 1 (with fewer updates an epoch)" in warned
    assert "accumulation" not in warned


def test_the_advice_of_replicas_that_wait_names_the_bound(spec):
    # It said to set method.accumulation, which is refused beside the bound.
    slow = ["partition.device_type=h100", "partition.replicas=4", "partition.link_bandwidth=1e5"]
    warned = plan(spec, slow).document(with_timeline=False)["warnings"]
    assert any("set method.max_staleness lower, or partition.replicas" in text for text in warned)


def test_a_spec_in_code_may_have_it(spec, write):
    # Its text had `accumulation = 1`, the default, and was refused.
    without = pg.load_spec(write("without.toml", SPEC.replace("max_staleness = 1.0\n", "")))
    assert pg.plan(without, {"method.max_staleness": 2.0}).document["accumulation"] == 2
    made = pg.load_spec(spec)
    assert pg.plan(made).document["accumulation"] == 4
    assert pg.plan(made.replace({"method.max_staleness": 2.0})).document["accumulation"] == 2
    with pytest.raises(SpecError, match="and accumulation = 2 is given"):
        pg.plan(made.replace({"method.accumulation": 2}))


def test_an_expanded_spec_keeps_it(spec, write, capsys):
    # `accumulation = 1` stood beside it, which the next reading refused.
    assert main(["plan", spec, "--expand"]) == 0
    assert plan(write("expanded.toml", capsys.readouterr().out)).spec.method.accumulation == 4


def test_an_accumulation_of_a_base_is_said_to_be_there(write):
    write("base.toml", SPEC.replace("max_staleness = 1.0", "accumulation = 2"))
    with pytest.raises(SpecError) as caught:
        plan(write("own.toml", 'extends = "base.toml"\n[method]\nmax_staleness = 1.0\n'))
    (problem,) = caught.value.problems
    assert str(problem.where) == "own.toml:3:17"
    assert problem.message.endswith("accumulation = 2 is given (base.toml:21:16)")


def test_a_trial_on_a_part_of_the_data_keeps_the_accumulation(spec, capsys):
    # It was refused, where its epoch was shorter than the window.
    assert main(["run", spec, "--fast-dev-run", "--json"]) == 0
    assert "sets accumulation = 4: an update averages 64 samples, an epoch has 1 update" in capsys.readouterr().err
    assert tomllib.loads((only_run() / "resolved.toml").read_text())["method"]["accumulation"] == 4


def test_its_bits_are_those_of_the_accumulation(spec, write):
    given_k = write("given.toml", SPEC.replace("max_staleness = 1.0", "accumulation = 4"))
    first = trained(spec)
    resolved = str(only_run() / "resolved.toml")
    assert trained(given_k) == trained(resolved) == first


@pytest.mark.parametrize(
    ("overrides", "message", "hint"),
    [
        (
            ["method.max_staleness=0.05"],
            "accumulation 80 would keep max_staleness = 0.05: the first backward comes 4 micro-batches late, and a window has at most 44 micro-batches",
            "set it to 0.091 or more, ",
        ),
        (["method.max_staleness=0"], "no accumulation keeps max_staleness = 0", "set it to 0.091 or more, "),
        (
            ["method.max_staleness=5e-324"],
            "no accumulation keeps max_staleness = 4.94066e-324: ",
            "set it to 0.091 or more, ",
        ),
        (
            ["method.max_staleness=5e-4", "data.name=random", "data.batch=1", "data.options.train=10_000"],
            "no accumulation keeps max_staleness = 0.0005: ",
            "set it to 0.000977 or more, ",
        ),
        (
            ["method.accumulation=1"],
            "max_staleness = 1 sets the accumulation, and accumulation = 1 is given (--set method.accumulation=1)",
            "leave out one of them",
        ),
        (
            ["method.schedule=[5,4,3,2,1]"],
            "max_staleness = 1 does not go with depths 5, 4, 3, 2, 1, which already set the delay",
            "leave it out and set `accumulation`",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(spec, overrides, message, hint):
    with pytest.raises(SpecError) as caught:
        plan(spec, overrides)
    (problem,) = caught.value.problems
    assert problem.message.startswith(message)
    assert problem.hint.startswith(hint)
    assert problem.path == ("method", "max_staleness")
