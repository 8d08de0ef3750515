"""Operations that are recorded give the bits of those as written, and nothing lives in the pool from one to the next."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from petra_graph.blocks import Streams
from petra_graph.executor.recorded import WARM_UP, RecordedOperation
from petra_graph.executor.stage import StageObserver
from petra_graph.measure.tally import LiveBytes
from petra_graph.training.prepare import record
from petra_graph.training.resume import restore_at_cut
from tests.support.kept_cut import KeptCut
from tests.support.pipelines import CLASSES, GRAPHS, SHAPES, batches, node, pipeline


class PoisonedPool:
    """The pool of one device that needs no GPU: it executes what was recorded anew, and fills everything else that it holds with NaN before.

    So whatever lives from one operation to the next, outside parameters, statistics, static inputs and static gradients, spoils the
    numbers of the run, as it would with graphs that share their memory.
    """

    def __init__(self) -> None:
        self.replays, self.poisoned = 0, 0
        self._made = LiveBytes()

    def record(self, operation: Callable[[], Streams]) -> Callable[[], Streams]:
        kept: list[Streams] = []

        def replay() -> Streams:
            kept[:] = [self.execute(operation)]  # a graph has its outputs until it is replayed
            return kept[0]

        return replay

    def execute(self, operation: Callable[[], Streams]) -> Streams:
        for storage in [alive() for alive in self._made._counted.values()]:
            if storage is not None:
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)  # NaN in every floating-point type
                self.poisoned += 1
        with LiveBytes() as self._made:
            outputs = operation()
        self.replays += 1
        return outputs


MICRO_BATCHES = 17
BATCH = 4
METHODS = {
    "petra, lockstep": {"schedule": "lockstep", "accumulation": 3},
    "petra, 1f1b": {"schedule": "1f1b"},
    "dsp": {"method": "dsp", "schedule": "1f1b", "accumulation": 2},
    "reversible-backprop": {"method": "reversible-backprop"},
    "bfloat16": {"compute": "bfloat16", "schedule": "1f1b"},
    "int8 messages and buffers": {"precision": {"channel_dtype": "int8", "buffer_dtype": "int8"}, "accumulation": 2},
    "two stages": {"stages": "two", "schedule": "1f1b", "accumulation": 2},
}


def built(graph: str, settings, recorder=None):
    settings = dict(settings)
    if settings.get("stages") == "two":
        names = [one.name for one in GRAPHS[graph]]
        settings["stages"] = (tuple(names[:3]), tuple(names[3:]))
    made = pipeline(GRAPHS[graph], SHAPES[graph], batch=BATCH, **{"compute": "float32"} | settings)
    if recorder is not None:
        for executor in made.executors:
            reason = executor.record(recorder)
            assert not reason or executor.program.nodes == ("head",)
    return made


def same(one, other) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("method", "graph"),
    [
        ("petra, lockstep", "chain"),
        ("petra, 1f1b", "revnet"),
        ("dsp", "skip"),
        ("reversible-backprop", "branches"),
        ("bfloat16", "chain"),
        ("int8 messages and buffers", "chain"),
        ("two stages", "chain"),
    ],
)
def test_recorded_operations_have_the_bits_of_those_as_written(method, graph):
    settings = METHODS[method]
    data = [(x.float(), y) for x, y in batches(SHAPES[graph], MICRO_BATCHES, size=BATCH)]
    written, pool = built(graph, settings), PoisonedPool()
    recorded = built(graph, settings, pool)
    losses = [[result.loss.item() for result in made.train(data)] for made in (written, recorded)]
    assert losses[0] == losses[1]
    same(written.parameters(), recorded.parameters())
    segments = [one for made in recorded.executors for _, one in made.runners if one.recorded is not None]
    assert len(segments) == len(GRAPHS[graph]) - 1
    assert pool.replays >= len(segments) * MICRO_BATCHES
    assert pool.poisoned


def test_a_resumed_run_with_a_window_that_began_elsewhere():
    graph, settings = "revnet", METHODS["petra, lockstep"]
    data = [(x.float(), y) for x, y in batches(SHAPES[graph], MICRO_BATCHES, size=BATCH)]
    written = built(graph, settings)
    kept = written.runtime.cuts = KeptCut(written.programs, 10)
    written.train(data)
    again = built(graph, settings, PoisonedPool())
    for executor in again.executors:
        restore_at_cut(kept.copies_at[10][executor.program.index], executor, again.runtime)
    again.runtime.train(data[10:], range(MICRO_BATCHES), lambda _: None, at=10)
    same(written.parameters(), again.parameters())


def test_what_draws_random_numbers_stays_as_written():
    nodes = (
        node("stem", "linear-stem", features=6),
        node("rev", "rev-mlp", hidden=7, dropout=0.5),
        node("head", "pool-linear", outputs=CLASSES),
    )
    made = [pipeline(nodes, (8,), schedule="1f1b", batch=BATCH) for _ in range(2)]
    for executor in made[1].executors:
        executor.record(PoisonedPool())
    data = batches((8,), MICRO_BATCHES, size=BATCH)
    made[0].train(data)
    with pytest.warns(RuntimeWarning, match="stays as it is written: it draws random numbers") as said:
        made[1].train(data)
    assert sorted(str(one.message).partition(":")[2].partition(" stays")[0] for one in said) == [
        " the backward of rev",
        " the forward of rev",
    ]
    same(made[0].parameters(), made[1].parameters())


class Refuses:
    def record(self, operation):
        operation()  # as a capture does: gradients are other tensors when it fails
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")


def test_where_a_recording_fails_the_operation_stays_as_written():
    data = [(x.float(), y) for x, y in batches(SHAPES["chain"], MICRO_BATCHES, size=BATCH)]
    settings = {"schedule": "1f1b"}
    written, refused = built("chain", settings), built("chain", settings, Refuses())
    written.train(data)
    with pytest.warns(
        RuntimeWarning, match="stays as it is written: operation not permitted when stream is capturing$"
    ):
        refused.train(data)
    same(written.parameters(), refused.parameters())


def test_gradients_of_a_window_that_began_as_written_are_added_to():
    parameter = nn.Parameter(torch.zeros(1))
    operation = RecordedOperation(PoisonedPool(), "the backward of a", {parameter: torch.empty(1)})

    def function(x):
        torch.autograd.backward(((parameter * x).sum(),))
        return (x * 2,)

    for m in range(WARM_UP + 2):
        operation(function, (torch.full((1,), float(m)),))
    assert parameter.grad.item() == sum(range(WARM_UP + 2))
    parameter.grad = torch.full((1,), 100.0)  # of a checkpoint
    operation(function, (torch.full((1,), 7.0),))
    assert parameter.grad.item() == 107.0
    parameter.grad = None
    operation(function, (torch.full((1,), 7.0),))
    assert parameter.grad.item() == 7.0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "pipedream", "schedule": "1f1b"}, "its passes have other parameters"),
        ({"method": "gpipe", "accumulation": 4}, "each segment is the head, or keeps its graph"),
    ],
)
def test_why_a_stage_records_nothing(settings, reason):
    made = pipeline(GRAPHS["chain"], (8,), batch=BATCH, **settings)
    assert reason in made.executors[0].record(PoisonedPool())


def test_an_observer_ends_recordings():
    made = built("chain", {"schedule": "1f1b"}, PoisonedPool())
    with pytest.warns(RuntimeWarning, match="^run.cuda_graphs: stage 2: nothing is recorded: replicas"):
        made.executors[1].observe(StageObserver())
    assert all(runner.recorded is None for _, runner in made.executors[1].runners)
    assert "follow its operations" in made.executors[1].record(PoisonedPool())


def test_a_run_without_a_gpu_says_in_one_line_that_it_records_nothing():
    with pytest.warns(
        RuntimeWarning, match="^run.cuda_graphs: stages 1, 2, 3, 4, 5: nothing is recorded: graphs are of CUDA devices$"
    ):
        record(built("chain", {}).executors, compiled=False)
