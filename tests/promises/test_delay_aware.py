"""An optimizer and a schedule that ask for their stage's facts are given the delays that the run has, wherever and however it runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from petra_graph.executor.stage import StageObserver
from petra_graph.executor.state import capture
from petra_graph.measure.tally import distinct_bytes, tensors
from petra_graph.program.schedule import order
from petra_graph.record import checkpoint
from petra_graph.runtime.loop import Scheduler
from petra_graph.training.prepare import prepare
from petra_graph.training.run import run
from tests.support.runs import MICRO_BATCHES, SPEC, only_run
from tests.support.stopping import StopAt

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


class Keeps(Noted):
    '''Besides, where there is a delay, the parameters before the step.'''

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for parameter in group["params"] if self.stage.steady else ():
                self.state[parameter]["before"] = parameter.detach().clone()


class Told(torch.optim.Optimizer):
    '''Knows no facts; its defaults have the delay.'''

    def __init__(self, groups, *, lr: float = 0.05):
        super().__init__([{"params": groups.decayed}, {"params": groups.undecayed}], {"lr": lr, "staleness": 0.0})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data.sub_(parameter.grad, alpha=group["lr"] / (1 + group["staleness"]))


class Facts(torch.optim.SGD):
    '''Knows its stage alone.'''

    def __init__(self, groups, *, lr: float = 0.05, stage):
        super().__init__([{"params": groups.decayed}, {"params": groups.undecayed}], lr=lr)


def falls(update, horizon, *, stage):
    return 1 / (1 + stage.staleness_of_update(update))
"""
TEXT = SPEC.replace(
    "[optimizer]\noptions =", '[lr_schedule]\nname = "delayed:falls"\n[optimizer]\nname = "delayed:Noted"\noptions ='
)
Notes = dict[int, list[list[list[float]]]]
"""By stage and update: rate and staleness of each group."""


@pytest.fixture
def spec(write):
    write("delayed.py", MODULE)
    return write("small.toml", TEXT)


def noted() -> Notes:
    """Return what the optimizers noted since the last call."""
    found = {int(path.name): [*map(json.loads, path.read_text().splitlines())] for path in Path("noted").iterdir()}
    shutil.rmtree("noted")
    return found


def delays(notes: Notes) -> dict[int, list[float]]:
    """Return the delays of each stage's updates; all groups have the same."""
    assert all(len({late for _, late in groups}) == 1 for updates in notes.values() for groups in updates)
    return {stage: [groups[0][1] for groups in updates] for stage, updates in notes.items()}


class Counts(StageObserver):
    """Counts a stage's own updates between the passes of each micro-batch."""

    def __init__(self, executor) -> None:
        self.updater, self.at_forward = executor.updater, {}
        self.late: list[int] = []
        self.means: list[float] = []

    @contextmanager
    def forward(self, micro_batch, _target):
        self.at_forward[micro_batch] = self.updater.updates
        yield

    @contextmanager
    def backward(self, micro_batch):
        self.late.append(self.updater.updates - self.at_forward[micro_batch])
        yield

    @contextmanager
    def update(self):
        self.means.append(sum(self.late) / len(self.late))
        self.late.clear()
        yield


def counted(depth: int, k: int, epochs: Sequence[int], filled: int = 0) -> list[float]:
    """Return the delays of updates behind a cut, counted over the order of operations."""
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


HOW = [("1f1b", 1), ("lockstep", 2), ("sequential", 3), ("[5, 3, 3, 1]", 1)]


@pytest.mark.parametrize(("schedule", "accumulation"), HOW)
def test_each_update_is_told_the_delay_that_counting_gives(spec, schedule, accumulation):
    """Over two epochs, with a short last window, and the rate of the delay that its number has."""
    ready = prepare(spec, [f"method.schedule={schedule}", f"method.accumulation={accumulation}"])
    executors = ready.executors()
    counts = [Counts(executor) for executor in executors]
    for executor, observer in zip(executors, counts, strict=True):
        executor.observe(observer)
    runtime = Scheduler(executors)
    for epoch in range(2):
        micro_batches = range(epoch * MICRO_BATCHES, (epoch + 1) * MICRO_BATCHES)
        runtime.train(ready.opened.epoch(epoch), micro_batches, lambda _: None)
    found = noted()
    expected = {index: observer.means for index, observer in enumerate(counts, 1)}
    assert delays(found) == expected
    rates = {stage: [0.05 * (1 / (1 + late)) for late in means] for stage, means in expected.items()}
    assert {stage: [groups[0][0] for groups in updates] for stage, updates in found.items()} == rates


@pytest.mark.parametrize("accumulation", [1, 2])
def test_under_other_stages_the_pipeline_of_that_epoch_fills_again(spec, accumulation):
    run(spec, [f"method.accumulation={accumulation}"], StopAt("trained 1/6"))
    (at, *_) = checkpoint.numbers(only_run())
    noted()
    assert main(["run", "--resume", "latest", "--set", "partition.stages=2", "--set", 'partition.devices=["cpu"]']) == 0
    assert delays(noted()) == {stage: counted(3 - stage, accumulation, [0, 1], filled=at) for stage in (1, 2)}


SPIKE = {"lr": 0.05, "optimizer": "sgd", "correction": "spike"}


def trained(spec, settings):
    """Train an epoch, and return each stage's updater with what a checkpoint holds of it."""
    ready = prepare(spec, settings)
    executors = ready.executors()
    Scheduler(executors).train(ready.opened.epoch(0), range(MICRO_BATCHES), lambda _: None)
    return [(executor.updater, capture(executor).facts) for executor in executors]


@pytest.mark.parametrize("name", ["sgd", "muon", "delayed:Facts"])
def test_plugins_whose_groups_have_no_such_key_find_none(spec, name):
    """Neither where they know the facts of their stage; checkpoints have no new key."""
    for updater, facts in trained(spec, [f"optimizer.name={name}", "lr_schedule.name=cosine"]):
        assert updater.stage is None
        assert all("staleness" not in group for group in (*updater.optimizer.param_groups, *facts["groups"]))
        assert "late" not in facts


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("corrected", SPIKE),
        ("corrected", {**SPIKE, "optimizer": "muon"}),
        ("corrected", {**SPIKE, "predict": True}),
        ("corrected", {"optimizer": "adam", "lr": 0.05, "correct_discrepancy": True}),
        ("delayed:Told", {"lr": 0.05}),
    ],
)
def test_a_key_of_its_groups_is_all_that_an_optimizer_needs(spec, name, options):
    settings = [
        f"optimizer.name={name}",
        *(f"optimizer.options.{key}={json.dumps(one)}" for key, one in options.items()),
    ]
    last = [counted(depth, 3, [0])[-1] for depth in (4, 3, 2, 1)]
    for (updater, facts), late in zip(trained(spec, settings), last, strict=True):
        for groups in (updater.optimizer.param_groups, facts["groups"]):
            assert len(groups) >= 2
            # A checkpoint leaves out what is as it was built.
            assert {group.get("staleness", 0.0) for group in groups} == {late}
        assert "late" in facts


def test_the_plan_counts_the_state_that_a_stage_with_a_delay_holds(spec):
    """Momentum and a copy: twice the parameters. The head's stage, without delay, holds less than is counted."""
    ready = prepare(spec, ["optimizer.name=delayed:Keeps"])
    executors, nodes = ready.executors(), ready.network.costs().nodes
    Scheduler(executors).train(ready.opened.epoch(0), range(MICRO_BATCHES), lambda _: None)
    for executor in executors:
        counted = sum(nodes[name].optimizer_bytes for name in executor.program.nodes)
        held = distinct_bytes(tensors(list(executor.updater.optimizer.state.values())))
        parameters = sum(parameter.nbytes for parameter in executor.updater.parameters)
        assert counted == 2 * parameters
        assert held == (parameters if executor.program.holds_head else counted)


def test_a_schedule_that_fails_in_a_stage_is_refused_before_the_run(spec, capsys):
    text = Path("delayed.py").read_text()
    Path("delayed.py").write_text(
        text.replace("    return 1 /", "    assert stage.depth < 4, 'too late'\n    return 1 /")
    )
    assert main(["run", spec]) == 4
    said = capsys.readouterr().err
    assert "small.toml:" in said
    assert "AssertionError: too late" in said
    assert not Path("runs").exists()
