"""A split backward changes when messages leave, and no bit: depths alone decide what is computed.

That processes change none either, and that a run resumed at any cut continues to the bit, is in `test_same_bits_on_processes.py` and
`test_resumed_pipelines.py`, through the same cases.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from attrs import evolve

from petra_graph.cli.main import main
from petra_graph.fidelity.probe import Probe
from petra_graph.training.training_run import run
from tests.promises.test_replicas import with_convolutions
from tests.promises.test_resume import At
from tests.promises.test_resumed_pipelines import EVERY_CUT, resumed
from tests.support import ROOT, runs, same_bits_cases
from tests.support.forks import RUN, SPEC, alone, children, ended, ranks, until, wait_for_progress
from tests.support.pairwise import thinned
from tests.support.pipelines import GRAPHS, SHAPES, batches, pipeline
from tests.support.runs import only_run, summary_of, weights_bytes, without_times
from tests.support.same_bits_cases import CASES, Case, in_one_process

SPLIT = {case.computation: case for case in CASES.values() if "words" in case.settings}


@cache
def whole(name: str) -> dict[str, str]:
    """What the same depths hold with whole backwards."""
    case = SPLIT[name]
    return in_one_process(evolve(case, settings={key: one for key, one in case.settings.items() if key != "words"}))


@pytest.mark.parametrize("name", thinned([*SPLIT], [name for name in SPLIT if name in same_bits_cases.USUAL]))
def test_the_bits_are_those_of_whole_backwards(name):
    assert same_bits_cases.alone(name) == whole(name)


def mixed(name: str) -> Case:
    """A case whose cut finds stages with whole backwards behind them, after R, and after R and I."""
    return next(case for computation, case in SPLIT.items() if name in computation)


@pytest.mark.parametrize("name", ["stages=cuts", "int8", "dsp", "predict", "'RFB', 'RIFW'", "'RFB', 'FB', 'FB'"])
def test_a_run_resumed_at_any_cut_goes_on_to_the_bit(name):
    for uninterrupted, again in resumed(mixed(name), *EVERY_CUT):
        assert again == uninterrupted


# --- whole runs ------------------------------------------------------------------------------------------------------

FOUR = ((3, 2, 2, 1), ("RFIW", "RFIW", "RIFW", "FRIW"))
SIX = ((4, 3, 3, 2, 2, 1), ("RIFW", "RFIW", "RIFW", "RFIW", "RIFW", "FRIW"))
SEVEN = ((4, 4, 3, 3, 2, 2, 1), ("RFIW", "RIFW", "RFIW", "RIFW", "RFIW", "RIFW", "FRIW"))
TEN = ((6, 5, 5, 4, 4, 3, 3, 2, 2, 1), ("RIFW", *("RFIW", "RIFW") * 4, "FRIW"))
REVNET = """\
name = "revnet"
[architecture]
name = "revnet"
options = { depth = 18, width = 0.125, classes = 10 }
[method]
accumulation = 3
[optimizer]
options = { lr = 0.01 }
[data]
name = "random"
batch = 4
options = { shape = [3, 32, 32], dtype = "uint8", classes = 10, train = 32, test = 8 }
[run]
epochs = 1
log_every = 1
"""


def settings(depths: Sequence[int], words: Sequence[str] | None) -> list[str]:
    """The depths of stages, and their words where backwards are split."""
    found = [f"method.schedule={list(depths)}"]
    return found if words is None else [*found, f"method.split_backward={list(words)}".replace("'", '"')]


def command(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture
def assert_as_whole(whole_run):
    """Compare the only run with the same one in one process, whose backwards are whole and which nothing interrupts."""

    def compare(spec: str, depths: Sequence[int], *more: str) -> None:
        whole = whole_run(Path(spec).read_text(), *settings(depths, None), *more)
        assert weights_bytes(only_run()) == weights_bytes(whole)
        assert without_times(only_run()) == without_times(whole)

    return compare


@pytest.mark.parametrize(
    ("spec", "order", "more"),
    [
        (REVNET, TEN, ()),
        ((ROOT / "specs" / "quickstart.toml").read_text(), SEVEN, ("run.epochs=1", "run.micro_batches=8")),
    ],
    ids=["revnet18 of width 8", "quickstart"],
)
def test_whole_runs(write, assert_as_whole, spec, order, more):
    name = write("network.toml", spec)
    assert main(["run", name, *command(*settings(*order), *more)]) == 0
    assert_as_whole(name, order[0], *more)


@pytest.mark.parametrize("call", ["trained 1/1", "trained 1/6", "trained 1/10", "evaluating 1", "trained 2/3"])
def test_a_run_that_is_interrupted_and_resumed(write, assert_as_whole, call):
    spec = write("small.toml", runs.SPEC)
    assert run(spec, settings(*FOUR), At(call)).interrupted is not None
    assert main(["run", "--resume", "latest"]) == 0
    assert_as_whole(spec, FOUR[0])


@pytest.mark.parametrize("network", ["revnet", "skip"])
def test_the_probe_measures_what_it_measures_of_whole_backwards(network):
    """Gradients of parameters are recorded in the part that computes them, once; inputs where they are reconstructed."""
    measured: list[dict[int, dict[str, float]]] = []
    for words in (False, SIX[1]):
        built = pipeline(GRAPHS[network], SHAPES[network], schedule=SIX[0], words=words, accumulation=2)
        found: dict[int, dict[str, float]] = {}
        probe = Probe(built.executors, lambda m, quantities, found=found: found.update({m: dict(quantities)}))
        probe.begin(range(9), [1, 4, 7])
        built.train(batches(SHAPES[network], 9))
        measured.append(found)
    for m, quantities in measured[0].items():  # Sums over parameters are in the order in which their gradients came.
        assert measured[1][m] == pytest.approx(quantities, rel=1e-12)
    assert any("reconstruction_error" in name for name in measured[0][4])


@pytest.mark.parametrize("words", [None, ("FRIW", "RFIW", "RFIW", "FRIW")])
def test_other_words_discard_what_is_in_flight_and_say_so(write, words, capsys):
    """What a stage holds at a cut follows from its word; the run continues as under other stages."""
    spec = write("small.toml", runs.SPEC)
    run(spec, settings(*FOUR), At("trained 1/6"))
    other = command(*settings(FOUR[0], words or ("FRIW",) * 4)) if words else command("method.split_backward=false")
    assert main(["run", "--resume", "latest", *other]) == 0
    assert "micro-batches in flight" in capsys.readouterr().err
    assert summary_of(only_run())["status"] == "done"


@pytest.fixture
def folder(shared_folder):
    """The specification of a run that takes some seconds, with dropout and windows of three micro-batches."""
    text = SPEC.replace("epochs = 2", "epochs = 30").replace("{ hidden = 12 }", "{ hidden = 12, dropout = 0.1 }")
    (shared_folder / "shared.toml").write_text(text.replace("[optimizer]", "accumulation = 3\n[optimizer]"))
    return shared_folder


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="shared memory"),
        pytest.param(("run.transport=process-group",), id="process group", marks=pytest.mark.thorough),
    ],
)
def test_three_processes(folder, assert_as_whole, more):
    assert folder
    words = [*RUN, *command(*settings(*FOUR), *more, "run.epochs=3")]
    with ranks(*[words] * 3) as running:
        assert ended(running) == [0] * 3, "".join(one.said for one in running)
    assert_as_whole("shared.toml", FOUR[0], "run.epochs=3")


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.slow
def test_a_killed_rank_is_started_again_from_the_latest_checkpoint(folder, assert_as_whole):
    assert folder
    every = command(*settings(*FOUR), "checkpoint.every=10 updates")
    with alone(*RUN, *every, "--processes", "2", "--max-restarts", "9", ranks_fork=True) as launcher:
        until(lambda: list(Path("runs").glob("*/checkpoints/0*")))
        wait_for_progress(random.Random(1).randrange(10, 40))
        os.kill(children(launcher.process.pid)[0], signal.SIGKILL)
        assert ended([launcher]) == [0], launcher.said
    assert len(summary_of(only_run())["resumed_from"]) == 1
    assert_as_whole("shared.toml", FOUR[0], "checkpoint.every=10 updates")


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.slow
def test_replicas(folder):
    """Two replicas of one process each: all-reduces begin with the last part, and the running statistics are averaged."""
    assert folder
    for name, words in (("split", FOUR[1]), ("whole", None)):
        given = command(*settings(FOUR[0], words), "partition.replicas=2", "run.epochs=3", f"run.directory={name}")
        with ranks(*[[*RUN, *given]] * 2) as running:
            assert ended(running) == [0, 0], "".join(one.said for one in running)
    assert weights_bytes(only_run("split")) == weights_bytes(only_run("whole"))
    assert without_times(only_run("split")) == without_times(only_run("whole"))


@pytest.mark.thorough
@pytest.mark.processes
@pytest.mark.slow
def test_synchronised_batch_normalisation(folder):
    """Two replicas of two processes: R and the forward of each micro-batch exchange statistics, in one order for all processes."""
    with_convolutions(folder)
    found = []
    for name, words in (("split", FOUR[1]), ("whole", None)):
        more = ("partition.replicas=2", "partition.sync_batch_norm=true", "run.epochs=2", f"run.directory={name}")
        with ranks(*[[*RUN, *command(*settings(FOUR[0], words), *more)]] * 4) as running:
            assert ended(running) == [0] * 4, "".join(one.said for one in running)
        found.append((weights_bytes(only_run(name)), without_times(only_run(name))))
    assert found[0] == found[1]
