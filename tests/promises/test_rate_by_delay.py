"""`lr_schedule.delay_epochs` gives each stage the rate of its own delay, wherever and however a run is made."""

from __future__ import annotations

import shutil

import pytest

from petra_graph.cli.main import main
from petra_graph.kinds.listener import Listener
from petra_graph.training.training_run import run
from tests.promises.test_delay_aware import MODULE, Notes, counted, noted
from tests.support.forks import ended, ranks
from tests.support.runs import MICRO_BATCHES, SPEC, only_run, weights_bytes
from tests.support.stopping import StopAt

TEXT = SPEC.replace("repeat = 2\n", "").replace(
    "[optimizer]\noptions =",
    """\
[lr_schedule]
name = "cosine"
warmup_epochs = 0.25
delay_epochs = 1.5
[optimizer]
name = "delayed:Noted"
options =""",
)
"""Three stages, over two epochs."""


@pytest.fixture
def spec(write):
    write("delayed.py", MODULE)
    return write("small.toml", TEXT)


def base_rates(settings) -> list[float]:
    """Return the rates of a run without delay, which the heads of all stages have."""
    run("small.toml", [*settings, "method.schedule=sequential"], Listener())
    found = rates(noted())
    shutil.rmtree("runs")
    assert found[1] == found[2] == found[3]
    return found[1]


def rates(notes: Notes) -> dict[int, list[float]]:
    """Return the rates of each stage's updates."""
    assert all(len({rate for rate, _ in groups}) == 1 for updates in notes.values() for groups in updates)
    return {stage: [groups[0][0] for groups in updates] for stage, updates in notes.items()}


@pytest.mark.parametrize(("schedule", "depths", "accumulation"), [("1f1b", (3, 2, 1), 1), ("lockstep", (5, 3, 1), 3)])
def test_each_stage_has_the_rate_of_its_delay(spec, schedule, depths, accumulation):
    """With T = 1.5 epochs; k = 3 leaves a short last window."""
    settings = [f"method.schedule={schedule}", f"method.accumulation={accumulation}"]
    whole = base_rates(settings)
    run(spec, settings, Listener())
    found = rates(noted())
    t = round(1.5 * -(-MICRO_BATCHES // accumulation))
    for stage, depth in enumerate(depths, 1):
        delays = counted(depth, accumulation, [0, 1])
        factors = [max(1, late) ** -(1 - min(u / t, 1)) for u, late in enumerate(delays)]
        assert found[stage] == pytest.approx([rate * factor for rate, factor in zip(whole, factors, strict=True)])
    assert found[3] == whole
    assert (found[1] == whole) == (max(depths) <= accumulation + 1)


def test_without_it_all_stages_have_the_rate_of_the_head(spec):
    run(spec, ["method.accumulation=1", "lr_schedule.delay_epochs=0"], Listener())
    found = rates(noted())
    assert found[1] == found[2] == found[3]


@pytest.mark.processes
def test_on_two_processes_and_after_a_resumption_they_are_the_same(spec):
    one = ["method.accumulation=1", "method.schedule=lockstep"]
    run(spec, one, Listener())
    whole, bits = noted(), weights_bytes(only_run())
    shutil.rmtree("runs")
    run(spec, one, StopAt("trained 1/8"))
    assert main(["run", "--resume", "latest"]) == 0
    assert noted() == whole
    assert weights_bytes(only_run()) == bits
    shutil.rmtree("runs")
    command = ("run", spec, *(word for each in one for word in ("--set", each)))
    with ranks(command, command) as running:
        assert ended(running) == [0, 0], running[1].said
    assert noted() == whole
    assert weights_bytes(only_run()) == bits
