"""In the steady state the host reads nothing from a device between two readings, and loses nothing by it.

A GPU is not needed: the readings are told to be as far apart as on one.
"""

from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from math import isnan

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.errors import RunFailed
from petra_graph.plugins.callback import Listener
from petra_graph.program.method import METHODS
from petra_graph.spec.model import ClipSpec
from petra_graph.training import data as data_of_a_run
from petra_graph.training import prepare as prepare_module
from petra_graph.training.evaluation import Meters, loss_failed
from petra_graph.training.run import run
from tests.support.pipelines import GRAPHS, SHAPES, batches, pipeline, same_bits
from tests.support.runs import SPEC

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
OF_METHODS = [{"method": name, "schedule": None, "accumulation": 2} for name in METHODS]


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


@pytest.mark.parametrize("settings", [CLIPPED, CLIPPED_BY_ONE_NORM])
def test_when_it_is_read_changes_no_bit(settings, monkeypatch):
    def trained():
        built, data = made("revnet", settings, 10)
        return built.train(data), built.parameters()

    results, expected = trained()
    monkeypatch.setattr(prepare_module, "read_interval", lambda *_: EVERY)
    later, found = trained()
    assert same_bits(found, expected)
    assert all(torch.equal(one.loss, other.loss) for one, other in zip(results, later, strict=True))


def test_a_run_reads_where_it_is_to_read(write, on_a_gpu, monkeypatch):
    """Between two micro-batches of a run, its loop reads nothing but where an interval ends, and at the end of the epoch."""
    reads = []

    class Watching(Listener):
        def trained(self, epoch, micro_batches, means):
            reads.append((micro_batches, dict(counts)))

    monkeypatch.setattr(data_of_a_run, "_fault_of", lambda *_: "")  # it reads what lies in the host's memory
    path = write("small.toml", SPEC)
    with counted(monkeypatch, ("item", "tolist", "__bool__", "__float__")) as counts:
        run(path, ["run.log_every=4", "run.epochs=1"], Watching())
    grew = [at for (_, before), (at, after) in pairwise(reads) if after != before]
    losses = [at for at, _ in reads[1:] if at % EVERY == 0 or at == len(reads)]
    norms = [at + 1 for at in range(2 * EVERY, len(reads), 2 * EVERY)]  # behind the backward
    assert grew == sorted({*losses, *norms})


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
