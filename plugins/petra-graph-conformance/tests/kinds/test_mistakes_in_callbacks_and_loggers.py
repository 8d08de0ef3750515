"""Mistakes that authors of callbacks and loggers make: what they leave changed, what they write over, what does not come back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from petra_graph_conformance import CallbackTrial, LoggerTrial
from petra_graph_conformance.examined_promises import examine
from petra_graph_conformance.kinds import logger as loggers

from petra_graph.plugins import Callback, CallbackDeclaration, Companion, LoggerDeclaration
from tests.support.plugin_of_each_kind import declared


class Right(Callback):
    """Reads the parameters of its stage, and switches autograd off where it does."""

    def __init__(self, options):
        self.parameters = {}

    def at_stage(self, parameters):
        self.parameters = parameters

    @torch.no_grad()
    def epoch_ended(self, report):
        self.norms = [float(one.norm()) for one in self.parameters.values()]


class WritesData(Right):
    """Not at its first call."""

    def epoch_ended(self, report):
        if report.epoch > 1:
            for one in self.parameters.values():
                one.data.mul_(0.9)


class WritesNumpy(Right):
    def epoch_ended(self, report):
        for one in self.parameters.values():
            one.detach().numpy()[0] = 0


class Freezes(Right):
    def epoch_ended(self, report):
        for one in self.parameters.values():
            one.requires_grad_(False)


class LeavesAutogradOff(Right):
    def epoch_ended(self, report):
        torch.set_grad_enabled(False)


class LeavesFloat64(Right):
    def started(self, run):
        torch.set_default_dtype(torch.float64)


class DrawsNumbers(Right):
    def epoch_ended(self, report):
        torch.rand(1)


class SeedsNumpy(Right):
    def started(self, run):
        np.random.seed(0)  # noqa: NPY002


class Moves(Right):
    def started(self, run):
        os.chdir(run.directory)


@pytest.mark.parametrize(
    ("callback", "found"),
    [
        (WritesData, 'it wrote to parameters in epoch 2: its declaration says changes = "nothing"'),
        (WritesNumpy, "it wrote to parameters in epoch 1"),
        (Freezes, "it switched off `requires_grad` of parameters"),
        (LeavesAutogradOff, "after its calls, torch.is_grad_enabled() is False"),
        (LeavesFloat64, "after its calls, torch.get_default_dtype() is torch.float64"),
        (DrawsNumbers, "generator"),
        (SeedsNumpy, "generator"),
        (Moves, "after its calls, the working directory is "),
    ],
)
def test_a_mistake_in_a_callback_is_found_and_settings_are_put_back(callback, found):
    where = Path.cwd()
    outcomes = examine(CallbackTrial.of(declared(CallbackDeclaration, callback))).outcomes
    outcome = next(one for one in outcomes if one.status == "broken")
    assert found in outcome.found
    assert outcome.remedy
    assert (torch.is_grad_enabled(), torch.get_default_dtype(), Path.cwd()) == (True, torch.float32, where)


class WritesWithCare(Companion):
    def __init__(self, parameters):
        self.parameters = parameters

    def updated(self, updates):
        for one in self.parameters.values():
            one.clamp_(-1, 1)


class Clips(Callback):
    def __init__(self, options):
        pass

    def at_stage(self, parameters):
        return WritesWithCare(parameters)


@pytest.mark.parametrize(("callback", "changes"), [(Right, "nothing"), (Clips, "weights")])
def test_a_right_callback_is_accepted(callback, changes):
    outcomes = examine(CallbackTrial.of(declared(CallbackDeclaration, callback, changes=changes))).outcomes
    assert [one for one in outcomes if one.found] == []


class Lines:
    mode = "a"
    name = "lines.txt"

    def __init__(self, options, run):
        self.file = (run.directory / self.name).open(self.mode)

    def record(self, *, epoch, step, values):
        self.file.writelines(f"{step} {name} {value}\n" for name, value in values.items())

    def close(self):
        self.file.close()


class WritesOver(Lines):
    mode = "w"


class Beside(Lines):
    def __init__(self, options, run):
        self.file = Path("mine.txt").open("a")  # noqa: SIM115


class Hangs(Lines):
    def close(self):
        super().close()
        loggers.threading.Event().wait(60)


@pytest.mark.parametrize(
    ("logger", "promise", "found"),
    [
        (WritesOver, "resumed", "a resumed run's file 'lines.txt' has "),
        (Beside, "changes nothing", "it wrote mine.txt to the working directory"),
        (Hangs, "construction", "`close` has not come back after 0.05 s, so that a run would not end"),
    ],
)
def test_a_mistake_in_a_logger_is_found(logger, promise, found, here, monkeypatch):
    monkeypatch.setattr(loggers, "_CLOSES_SECONDS", 0.05)
    outcomes = examine(LoggerTrial.of(declared(LoggerDeclaration, logger)), leave_out=[]).outcomes
    if logger is Beside:  # each trial would find the file of the one before
        (here / "mine.txt").unlink()
        outcomes = examine(
            LoggerTrial.of(declared(LoggerDeclaration, logger)), leave_out=["values", "resumed", "construction"]
        ).outcomes
    outcome = next(one for one in outcomes if one.promise == promise)
    assert outcome.status == "broken"
    assert found in outcome.found
    assert outcome.remedy


def test_a_right_logger_is_accepted():
    outcomes = examine(LoggerTrial.of(declared(LoggerDeclaration, Lines))).outcomes
    assert [one for one in outcomes if one.found] == []
