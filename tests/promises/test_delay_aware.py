"""An optimizer and a schedule that ask for their stage's facts are given the delays that the run has, wherever and however it runs."""

import json
import shutil
from pathlib import Path

import pytest
from attrs import evolve

from petra_graph.cli.main import main
from petra_graph.plugins.callback import Listener
from petra_graph.plugins.stage_facts import DELAYED
from petra_graph.record import checkpoint
from petra_graph.training.run import run
from tests.program.test_schedule import counted
from tests.support.runs import MICRO_BATCHES, SPEC, StopAt, only_run, overrides

MODULE = """\
import json
from pathlib import Path

import torch


class Noted(torch.optim.SGD):
    '''Momentum of two groups, whose steps shrink with their delay; notes what it is given in training.'''

    def __init__(self, groups, *, lr: float = 0.05, stage):
        rates = ((groups.decayed, lr), (groups.undecayed, 8 * lr))
        super().__init__([{"params": own, "lr": rate, "staleness": 0.0} for own, rate in rates], lr=lr, momentum=0.9)
        self.stage = stage

    def step(self, closure=None):
        given = [[group["lr"], group["staleness"]] for group in self.param_groups]
        if self.stage.micro_batches < 1000:  # not in a trial
            Path("noted").mkdir(exist_ok=True)
            with open(f"noted/{self.stage.index}", "a") as file:
                print(json.dumps(given), file=file)
        for group in self.param_groups:
            group["lr"] /= 1 + group["staleness"]
        super().step()


def falls(update, horizon, *, stage):
    return 1 / (1 + stage.staleness_of_update(update))
"""
TEXT = SPEC.replace(
    "[optimizer]\noptions =", '[lr_schedule]\nname = "delayed:falls"\n[optimizer]\nname = "delayed:Noted"\noptions ='
)


@pytest.fixture
def spec(write):
    write("delayed.py", MODULE)
    return write("small.toml", TEXT)


def noted() -> dict[int, list[tuple[float, float]]]:
    """Return by stage and update the first group's rate and delay, as noted since the last call; rates of groups keep their ratio."""
    found = {}
    for path in Path("noted").iterdir():
        updates = [json.loads(line) for line in path.read_text().splitlines()]
        assert all([8 * rate, late] == other for (rate, late), other in updates)
        found[int(path.name)] = [tuple(one) for one, _ in updates]
    shutil.rmtree("noted")
    return found


def delays(depth: int, k: int, filled: int = 0) -> list[float]:
    """Return the delays of a stage's updates in two epochs behind a cut, counted over the order of its operations."""
    stage = evolve(DELAYED, depth=depth, accumulation=k, micro_batches=MICRO_BATCHES, flush="drain", filled=filled)
    late_and_windows = (counted(stage, epoch) for epoch in (0, 1))
    return [sum(late[m] for m in window) / len(window) for late, windows in late_and_windows for window in windows]


@pytest.mark.parametrize(
    ("schedule", "accumulation", "depths"), [("lockstep", 2, (7, 5, 3, 1)), ("[5, 3, 3, 1]", 1, (5, 3, 3, 1))]
)
def test_each_update_is_told_the_delay_that_counting_gives(spec, schedule, accumulation, depths):
    """Over two epochs, with a short last window, and the rate of the delay that its number has."""
    run(spec, [f"method.schedule={schedule}", f"method.accumulation={accumulation}"], Listener())
    late = {stage: delays(depth, accumulation) for stage, depth in enumerate(depths, 1)}
    assert noted() == {stage: [(0.05 * (1 / (1 + one)), one) for one in means] for stage, means in late.items()}


def test_under_other_stages_the_pipeline_of_that_epoch_fills_again(spec):
    run(spec, ["method.accumulation=2"], StopAt("trained 1/6"))
    (at, *_) = checkpoint.numbers(only_run())
    noted()
    assert main(["run", "--resume", "latest", *overrides("partition.stages=2", 'partition.devices=["cpu"]')]) == 0
    found = {stage: [late for _, late in updates] for stage, updates in noted().items()}
    assert found == {stage: delays(3 - stage, 2, filled=at) for stage in (1, 2)}
