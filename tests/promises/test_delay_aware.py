"""An optimizer and a schedule that ask for their stage's facts are given the delays that the run has, wherever and however it runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from petra_graph.plugins.callback import Listener
from petra_graph.program.schedule import order
from petra_graph.record import checkpoint
from petra_graph.training.run import run
from tests.support.runs import MICRO_BATCHES, SPEC, StopAt, only_run, overrides

MODULE = """\
import json
from pathlib import Path

import torch


class Noted(torch.optim.SGD):
    '''Momentum whose step shrinks with its delay; notes what it is given in training.'''

    def __init__(self, groups, *, lr: float = 0.05, stage):
        both = [{"params": own, "staleness": 0.0} for own in (groups.decayed, groups.undecayed)]
        super().__init__(both, lr=lr, momentum=0.9)
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
    """Return by stage and update the rate and the delay that the optimizers noted since the last call; all groups have the same."""
    found = {}
    for path in Path("noted").iterdir():
        updates = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(one == groups[0] for groups in updates for one in groups)
        found[int(path.name)] = [tuple(groups[0]) for groups in updates]
    shutil.rmtree("noted")
    return found


def counted(depth: int, k: int, epochs: Sequence[int], filled: int = 0) -> list[float]:
    """Return the delays of a stage's updates behind a cut, counted over the order of its operations."""
    means: list[float] = []
    for epoch in epochs:
        updates, at_forward, late = 0, {}, []
        for action in order(depth, range(epoch * MICRO_BATCHES, (epoch + 1) * MICRO_BATCHES), k, "drain", filled):
            match action.verb:
                case "forward":
                    at_forward[action.micro_batch] = updates
                case "backward":
                    late.append(updates - at_forward[action.micro_batch])
                case "update":
                    means.append(sum(late) / len(late))
                    late, updates = [], updates + 1
    return means


@pytest.mark.parametrize(
    ("schedule", "accumulation", "depths"), [("lockstep", 2, (7, 5, 3, 1)), ("[5, 3, 3, 1]", 1, (5, 3, 3, 1))]
)
def test_each_update_is_told_the_delay_that_counting_gives(spec, schedule, accumulation, depths):
    """Over two epochs, with a short last window, and the rate of the delay that its number has."""
    run(spec, [f"method.schedule={schedule}", f"method.accumulation={accumulation}"], Listener())
    late = {stage: counted(depth, accumulation, [0, 1]) for stage, depth in enumerate(depths, 1)}
    assert noted() == {stage: [(0.05 * (1 / (1 + one)), one) for one in means] for stage, means in late.items()}


def test_under_other_stages_the_pipeline_of_that_epoch_fills_again(spec):
    run(spec, ["method.accumulation=2"], StopAt("trained 1/6"))
    (at, *_) = checkpoint.numbers(only_run())
    noted()
    assert main(["run", "--resume", "latest", *overrides("partition.stages=2", 'partition.devices=["cpu"]')]) == 0
    delays = {stage: [late for _, late in updates] for stage, updates in noted().items()}
    assert delays == {stage: counted(3 - stage, 2, [0, 1], filled=at) for stage in (1, 2)}
