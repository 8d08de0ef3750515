"""Loggers and callbacks, each wrong in one way: the promise that it breaks says so."""

from __future__ import annotations

import random

import pytest
import torch
from petra_graph_conformance import CallbackTrial, LoggerTrial
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.plugin_trial import as_plugin

from petra_graph.errors import PluginError
from petra_graph.kinds.logger import LOGGER, load_logger
from petra_graph.plugins import Callback, CallbackDeclaration, Companion, LoggerDeclaration
from tests.support.kit import ask, kept
from tests.support.plugin_of_each_kind import broken, declared


class Text:
    def __init__(self, options, run):
        self.run = run
        self.file = (run.directory / "text.txt").open("a" if run.resumed_at else "w")

    def record(self, *, epoch, step, values):
        self.file.writelines(f"{name} {value}\n" for name, value in values.items())

    def close(self):
        self.file.close()


class Rounds(Text):
    def record(self, *, epoch, step, values):
        super().record(epoch=epoch, step=step, values={name: round(value) for name, value in values.items()})


class OpensANewFile(Text):
    def __init__(self, options, run):
        self.file = (run.directory / "text.txt").open("x")


class WritesToMetrics(Text):
    def __init__(self, options, run):
        self.file = (run.directory / "metrics.jsonl").open("w")


class TakesValues(Text):
    def record(self, *, epoch, step, values):
        values.clear()


class NeverCloses:
    record = Text.record

    def __init__(self, options, run):
        pass


class Samples(Text):
    def record(self, *, epoch, step, values):
        random.random()


def logger_trial(build):
    return LoggerTrial.of(declared(LoggerDeclaration, build))


def test_a_sound_logger_passes():
    assert kept(LoggerTrial.of(declared(LoggerDeclaration, Text))).kept


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("build", "promise", "found"),
    [
        (lambda options, run: None, "construction", "without the method `record` and `close`"),
        (NeverCloses, "construction", "its build returns a NeverCloses without the method `close`"),
        (Rounds, "values", "cannot convert float infinity to integer"),
        (OpensANewFile, "resumed", "FileExistsError"),
        (WritesToMetrics, "changes nothing", "it wrote to metrics.jsonl"),
        (TakesValues, "changes nothing", "it changed the values that it was given"),
        (Samples, "changes nothing", "it moved the global generator of python"),
    ],
)
def test_a_logger_is_caught(build, promise, found):
    assert found in broken(logger_trial(build))[promise]


class ClosesItsFile(Text):
    close = None

    def __init__(self, options, run):
        super().__init__(options, run)
        self.close = self.file.close


def test_a_class_of_loggers_is_looked_at_before_it_is_built():
    def refused(build):
        load_logger(as_plugin(LOGGER, declared(LoggerDeclaration, build)))

    with pytest.raises(PluginError, match="NeverCloses has no method `close`"):
        refused(NeverCloses)
    refused(ClosesItsFile)


class Averages(Companion):
    def __init__(self, parameters):
        self.parameters, self.averages = parameters, {}

    def updated(self, updates):
        for name, parameter in self.parameters.items():
            self.averages[name] = self.averages.get(name, parameter.detach()) * 0.5 + parameter.detach() * 0.5

    def state(self):
        return self.averages

    def restore(self, tensors):
        self.averages = dict(tensors)


class Average(Callback):
    companion = Averages

    def __init__(self, options):
        self.seen = 0

    def at_stage(self, parameters):
        return self.companion(parameters)

    def evaluated(self, epoch, first, outputs, targets):
        self.seen += len(targets)

    def state(self):
        return self.seen

    def restore(self, state):
        self.seen = state


class WritesParameters(Averages):
    def updated(self, updates):
        for parameter in self.parameters.values():
            parameter.mul_(0.9)


class Projects(Average):
    companion = WritesParameters


class ForgetsItsTensors(Averages):
    def restore(self, tensors):
        pass


class Forgets(Average):
    companion = ForgetsItsTensors


class StopsInVain(Average):
    def stops(self):
        return "enough"


class StopsWithANumber(Average):
    def stops(self):
        return None


class OfKeras(Average):
    def on_epoch_end(self, epoch, logs=None):
        self.seen = 0


class Misspelt(Average):
    def epoch_end(self, report):
        self.seen = 0


class OfAnother(Average):
    def on_before_zero_grad(self, trainer):
        pass


class Helps(Average):
    """Its own methods, which it calls itself, are no mistake; nor is one that nothing resembles."""

    def trained(self, epoch, micro_batches, means):
        self.train(micro_batches)

    def train(self, count):
        self.count = count

    def report(self):
        return self.count


class Positional(Average):
    def evaluated(self, outputs, targets):
        pass


class Normalises(Average):
    def evaluated(self, epoch, first, outputs, targets):
        outputs.sub_(1)


class Draws(Average):
    def trained(self, epoch, micro_batches, means):
        torch.rand(())


class HoldsATensor(Average):
    def state(self):
        return torch.ones(())


class NeverRestored(Callback):
    def __init__(self, options):
        pass

    def state(self):
        return 1


class NeedsOneBatch(Average):
    def evaluated(self, epoch, first, outputs, targets):
        if first:
            raise IndexError("a second batch")


def callback_trial(build, changes="nothing"):
    return CallbackTrial.of(declared(CallbackDeclaration, build, changes=changes))


def test_a_sound_callback_passes():
    assert kept(CallbackTrial.of(declared(CallbackDeclaration, Average))).kept
    assert broken(callback_trial(Projects, "weights")) == {}
    assert broken(callback_trial(StopsInVain, "length")) == {}
    assert broken(callback_trial(Helps)) == {}


@pytest.mark.parametrize(
    ("build", "promise", "found"),
    [
        (lambda options: None, "calls", "its build returns None, not a Callback"),
        (NeverRestored, "calls", "it defines `state` and no `restore`"),
        (NeedsOneBatch, "calls", "a second batch"),
        (StopsInVain, "calls", 'it defines `stops`, which is never asked: its declaration says changes = "nothing"'),
        (OfKeras, "calls", "it defines `on_epoch_end`, which no run calls"),
        (Misspelt, "calls", "it defines `epoch_end`, which no run calls"),
        (OfAnother, "calls", "it defines `on_before_zero_grad`, which no run calls"),
        (
            Positional,
            "calls",
            "cannot be called as evaluated(epoch, first, outputs, targets): too many positional arguments",
        ),
        (Projects, "changes", 'it wrote to parameters in epoch 1: its declaration says changes = "nothing"'),
        (Normalises, "changes", "it changed outputs or targets of the evaluation"),
        (Draws, "changes", "it moved the global generator of torch"),
        (HoldsATensor, "state", "it is not JSON: Object of type Tensor is not JSON serializable"),
        (Forgets, "state", "a resumed companion has other tensors than one that was not interrupted"),
    ],
)
def test_a_callback_is_caught(build, promise, found):
    assert found in broken(callback_trial(build))[promise]


def test_a_reason_to_stop_is_a_text():
    assert "its stops returns None, not a text" in broken(callback_trial(StopsWithANumber, "length"))["calls"]


@pytest.mark.parametrize(
    ("build", "remedy"),
    [
        (OfKeras, "a callback's methods are at_stage, ended, epoch_ended, "),
        (Misspelt, "call it `epoch_ended`"),
        (OfAnother, "a callback's methods are at_stage, ended, epoch_ended, "),
    ],
)
def test_the_method_that_is_meant_is_named(build, remedy):
    with pytest.raises(BrokenPromise) as caught:
        ask(callback_trial(build), "calls")
    assert caught.value.remedy.startswith(remedy)
