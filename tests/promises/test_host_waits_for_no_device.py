"""In the steady state the host reads nothing from a device between two readings, and loses nothing by it.

A GPU is not needed: the readings are told to be as far apart as on one.
"""

from collections import Counter
from contextlib import contextmanager
from math import isnan

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.errors import RunFailed
from petra_graph.spec.model import ClipSpec
from petra_graph.training import prepare as prepare_module
from petra_graph.training.evaluation import Meters, loss_failed
from tests.support.pipelines import GRAPHS, SHAPES, batches, pipeline

EVERY = 4
READS = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__")
"""Without `numpy`: torch refuses it for what is on a GPU."""


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Read every `EVERY` micro-batches, as on a GPU."""
    monkeypatch.setattr(prepare_module, "read_interval", lambda device, log_every: min(log_every, EVERY))


class Reads(TorchDispatchMode):
    """Counts what makes a host wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = str(function)
        if "_local_scalar_dense" in name or "nonzero" in name or "is_same_size" in name:
            self.counts[name] += 1
        return function(*arguments, **(keywords or {}))


@contextmanager
def counted(monkeypatch, names=READS):
    with monkeypatch.context() as patch, Reads() as reads:
        for name in names:
            original = getattr(torch.Tensor, name)

            def read(tensor, *arguments, original=original, name=name, **keywords):
                reads.counts[name] += 1
                return original(tensor, *arguments, **keywords)

            patch.setattr(torch.Tensor, name, read)
        yield reads.counts


CLIPPED = {"clip": ClipSpec(limit=0.01)}
CLIPPED_BY_ONE_NORM = {"clip": ClipSpec(limit=0.01, scope="global"), "schedule": "sequential"}
IN_FEW_BITS = {"precision": {"buffer_dtype": "int8", "channel_dtype": "bfloat16"}, "compute": "float32"}
OF_METHODS = [{"method": name, "schedule": None, "accumulation": 2} for name in ("backprop", "pipedream", "gpipe")]


def made(graph, settings, count):
    """A pipeline, and micro-batches for it."""
    built = pipeline(GRAPHS[graph], SHAPES[graph], **{"schedule": "1f1b", **settings})
    data = batches(SHAPES[graph], count, size=2)
    return built, [(x.float(), y) for x, y in data] if settings.get("compute") == "float32" else data


@pytest.mark.parametrize("settings", [{}, CLIPPED, CLIPPED_BY_ONE_NORM, IN_FEW_BITS, *OF_METHODS])
def test_nothing_is_read_in_the_steady_state(settings, on_a_gpu, monkeypatch):
    """Loss, metrics and clip factor were read every micro-batch."""
    built, data = made("chain", settings, 4 * EVERY)
    built.train(data[: 2 * EVERY])
    with monkeypatch.context() as patch:
        for executor in built.executors:
            patch.setattr(executor, "check", lambda: None)
        with counted(monkeypatch) as counts:
            results = built.train(data[2 * EVERY :], start=2 * EVERY)
    assert counts == {}
    for executor in built.executors:
        executor.check()
    assert len(results) == 2 * EVERY


def test_the_first_bad_micro_batch_is_named_though_others_follow(on_a_gpu):
    """Of micro-batches 4 to 7, which are read together, the first bad one is reported."""
    built, data = made("chain", {}, 12)
    for m in (5, 6):
        data[m][0][0, 0] = float("nan")
    meters, seen = Meters(), []

    def observe(result) -> None:
        seen.append(result.micro_batch)
        meters.add(result)
        if len(seen) % EVERY == 0:
            for one, loss in meters.read():
                if isnan(loss):
                    raise loss_failed(f"the loss at micro-batch {one.micro_batch}", loss)

    with pytest.raises(RunFailed) as caught:
        built.runtime.train(data, range(len(data)), observe)
    assert seen[-1] == 7
    (problem,) = caught.value.problems
    assert problem.message == "the loss at micro-batch 5 is nan"
    values = built.parameters().values()
    assert all(bool(torch.isfinite(value).all()) for value in values), "the gate keeps parameters finite"
