"""A block or a hook may keep what its stage receives, and no channel stalls."""

from __future__ import annotations

import warnings
from collections import deque

import pytest
import torch

from petra_graph.runtime.scheduler import stage_operations
from petra_graph.runtime.scheduler.stage_operations import TRIALS, StageOperations
from tests.runtime.scheduler.test_policies import MICRO_BATCHES, trained
from tests.support.pipelines import GRAPHS, Pipeline, pipeline

SETTINGS = {"schedule": "1f1b"}
STAGE = 2
"""Of the second process: it receives from the first."""


@pytest.fixture
def keeping(monkeypatch):
    """Train the chain on as many processes as stages, with something that keeps what stage 2 receives."""

    def train(keep):
        def built(*arguments, **more) -> Pipeline:
            made = pipeline(*arguments, **more)
            keep(made.executors[STAGE - 1].modules["rev0"])
            return made

        monkeypatch.setattr("tests.runtime.scheduler.test_policies.pipeline", built)
        return trained("chain", SETTINGS, len(GRAPHS["chain"]), "arrival")

    return train


def keeps_inputs(block, seen) -> None:
    block.register_forward_pre_hook(lambda _, streams: seen.append(streams))


def in_a_list_of_its_own(block) -> None:
    block.last = deque(maxlen=2)
    keeps_inputs(block, block.last)


def in_a_hook(block) -> None:
    keeps_inputs(block, deque(maxlen=2))


def in_a_cycle(block) -> None:
    def tie(_, streams) -> None:
        cycle = [streams]
        cycle.append(cycle)

    block.register_forward_pre_hook(tie)


KEEPERS = (in_a_list_of_its_own, in_a_hook, in_a_cycle)


@pytest.mark.filterwarnings("ignore:.*keeps what stage:RuntimeWarning")
@pytest.mark.parametrize("keep", KEEPERS)
def test_two_inputs_that_something_keeps_stall_no_channel(keeping, keep, monkeypatch):
    """They took both slots of the channel for ever, and the run ended with "this is a bug"."""
    said = []
    monkeypatch.setattr(stage_operations.warnings, "warn", lambda message, *_, **__: said.append(message))
    built, _ = keeping(keep)
    expected, _ = trained("chain", SETTINGS, 1, "arrival")
    one, other = built.parameters(), expected.parameters()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert len(said) == 1
    assert "something keeps what stage 2 (rev0) has received for its forward" in said[0]


def test_where_nothing_keeps_them_messages_are_read_in_their_slots(monkeypatch):
    made, copies = [], []
    copied = stage_operations.copied
    monkeypatch.setattr(stage_operations, "copied", lambda message: copies.append(1) or copied(message))
    init = StageOperations.__init__

    def recorded(operations, *arguments) -> None:
        init(operations, *arguments)
        made.append(operations)

    monkeypatch.setattr(StageOperations, "__init__", recorded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained("chain", SETTINGS, len(GRAPHS["chain"]), "arrival")
    kinds = [kind for operations in made for _, kind in operations._messages._trials.items()]
    assert set(kinds) == {MICRO_BATCHES - 1}, "the last message is looked at by no operation"
    assert len(copies) == TRIALS * len(kinds)
