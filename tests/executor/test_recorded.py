"""Operations that are recorded, and blocks that are compiled, compute what they compute as written, and refuse what would not hold."""

from functools import partial

import pytest
import torch
from torch import nn

from petra_graph.blocks.randomness import fork_rng
from petra_graph.errors import RunFailed
from petra_graph.executor.recorded import COMPARED, WARM_UP, RecordedOperation, calls
from petra_graph.executor.stage import StageObserver
from petra_graph.measure.tally import LiveBytes
from petra_graph.training.checkpoint import restore_at_cut
from tests.support.kept_cut import KeptCut
from tests.support.pipelines import (
    CHAIN,
    CLASSES,
    GRAPHS,
    REVNET,
    SHAPES,
    batches,
    node,
    pipeline,
    relative_error,
    same_bits,
)

MICRO_BATCHES, BATCH = 17, 4


class PoisonedPool:
    """The pool of one device that needs no GPU: it executes what was recorded anew, and fills everything else that it holds with NaN before.

    So whatever lives from one operation to the next, outside parameters, statistics and static inputs, spoils the numbers of the run, as it
    would with graphs that share their memory.
    """

    def __init__(self) -> None:
        self.replays, self.poisoned = 0, 0
        self._made = LiveBytes()

    def __call__(self, operation, inputs):
        static, kept = tuple(map(torch.empty_like, inputs)), []

        def replay(*inputs):
            for own, one in zip(static, inputs, strict=True):
                own.copy_(one)
            kept[:] = self.execute(operation, static)  # a graph has its outputs until it is replayed
            return tuple(map(torch.clone, kept))

        return replay

    def execute(self, operation, static):
        for storage in [alive() for alive in self._made._counted.values()]:
            if storage is not None:
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)  # NaN in every floating-point type
                self.poisoned += 1
        with LiveBytes() as self._made, torch.enable_grad():
            outputs = operation(*static)
        self.replays += 1
        return outputs


def built(graph, settings, recorder=None):
    made = pipeline(GRAPHS[graph], SHAPES[graph], batch=BATCH, **{"compute": "float32"} | settings)
    for executor in made.executors if recorder is not None else ():
        reason = executor.record(recorder)
        assert not reason or executor.program.nodes == ("head",)
    return made


def data(graph):
    return [(x.float(), y) for x, y in batches(SHAPES[graph], MICRO_BATCHES, size=BATCH)]


def same(one, other) -> None:
    assert same_bits(one.parameters(), other.parameters())


LOCKSTEP = {"schedule": "lockstep", "accumulation": 3}
LATE = {"schedule": "1f1b"}


@pytest.mark.parametrize(
    ("graph", "settings", "recorder"),
    [
        ("revnet", LATE, PoisonedPool),
        ("chain", LOCKSTEP, lambda: calls),
        ("skip", {"method": "dsp", "schedule": "1f1b", "accumulation": 2}, PoisonedPool),
        ("chain", {"compute": "bfloat16", "schedule": "1f1b"}, PoisonedPool),
        ("chain", {"precision": {"channel_dtype": "int8", "buffer_dtype": "int8"}, "accumulation": 2}, lambda: calls),
        ("chain", {"stages": (("stem", "rev0", "rev1"), ("rev2", "head")), "accumulation": 2}, PoisonedPool),
    ],
)
def test_recorded_operations_have_the_bits_of_those_as_written(graph, settings, recorder):
    written, pool = built(graph, settings), recorder()
    recorded = built(graph, settings, pool)
    losses = [[result.loss.item() for result in made.train(data(graph))] for made in (written, recorded)]
    assert losses[0] == losses[1]
    same(recorded, written)
    segments = [one.recorded for made in recorded.executors for _, one in made.runners if one.recorded is not None]
    assert len(segments) == len(GRAPHS[graph]) - 1
    assert not any(one.off for passes in segments for one in passes)
    if isinstance(pool, PoisonedPool):
        assert pool.replays >= len(segments) * MICRO_BATCHES
        assert pool.poisoned


def test_a_resumed_run_with_a_window_that_began_elsewhere():
    written = built("revnet", LOCKSTEP)
    kept = written.runtime.cuts = KeptCut(written.programs, 10)
    written.train(data("revnet"))
    again = built("revnet", LOCKSTEP, PoisonedPool())
    for executor in again.executors:
        restore_at_cut(kept.copies_at[10][executor.program.index], executor, again.runtime)
    again.runtime.train(data("revnet")[10:], range(MICRO_BATCHES), lambda _: None, at=10)
    same(again, written)


class Scale(nn.Linear):
    """One number, with a backward that a test calls."""

    def __init__(self) -> None:
        super().__init__(1, 1, bias=False)

    def differentiated(self, x: torch.Tensor):
        with torch.enable_grad():
            self.weight.mul(x).sum().backward()
        return (x * 2,)


def recorded_scale(*, recorder=None) -> tuple[Scale, RecordedOperation]:
    module = Scale()
    operation = RecordedOperation(recorder or calls, "the backward of a", [module])
    for m in range(WARM_UP + COMPARED):
        operation(module.differentiated, (torch.full((1, 1), float(m)),))
    assert module.weight.grad.item() == sum(range(WARM_UP + COMPARED))
    return module, operation


@pytest.mark.parametrize("recorder", [PoisonedPool, lambda: calls])
def test_gradients_of_a_window_that_began_as_written_are_added_to(recorder):
    module, operation = recorded_scale(recorder=recorder())
    module.weight.grad = torch.full((1, 1), 100.0)  # of a checkpoint
    operation(module.differentiated, (torch.full((1, 1), 7.0),))
    assert module.weight.grad.item() == 107.0
    module.weight.grad = None
    operation(module.differentiated, (torch.full((1, 1), 7.0),))
    assert module.weight.grad.item() == 7.0
    assert not operation.off
    operation(module.differentiated, (torch.full((2, 1), 7.0),))  # the last micro-batch, of another size
    assert module.weight.grad.item() == 21.0


class Other:
    """A module whose numbers a replay cannot have."""

    def __init__(self) -> None:
        self.calls = 0

    def counts(self, x: torch.Tensor):
        self.calls += 1
        return (x * self.calls,)

    def branches(self, x: torch.Tensor):
        return (x * 2 if x.sum() > 0 else x,)


@pytest.mark.parametrize(
    ("function", "reason"),
    [("counts", "its replay on other data gave other numbers"), ("branches", ".*_local_scalar_dense|.*data-dependent")],
)
def test_what_is_not_the_same_function_each_time_stays_as_written(function, reason):
    other, operation = Other(), RecordedOperation(calls, "the forward of a", [])
    with pytest.warns(RuntimeWarning, match=f"^run.record: the forward of a stays as it is written: {reason}"):
        found = [operation(getattr(other, function), (torch.ones(1),))[0].item() for _ in range(8)]
    assert operation.off
    assert found[-1] == (other.calls or 2)


def drawn(_, x):
    with fork_rng(7, x.device):  # a node's key
        return (x * torch.rand(1),)


def hooked(module, x):
    module.weight.register_hook(lambda gradient: gradient * 2)
    return module.differentiated(x)


@pytest.mark.parametrize(("function", "reason"), [(drawn, "it draws random numbers"), (hooked, "a hook follows it")])
def test_what_draws_or_is_hooked_stays_as_written(function, reason):
    module = Scale()
    operation = RecordedOperation(calls, "the forward of a", [module])
    with pytest.warns(RuntimeWarning, match=f"stays as it is written: {reason}"):
        operation(partial(function, module), (torch.ones(1, 1),))
    assert operation.off


def test_a_stage_that_is_observed_later_records_nothing_any_more_and_says_so():
    made = built("chain", LATE, PoisonedPool())
    with pytest.warns(RuntimeWarning, match=r"^run.record: stage 2: nothing is recorded: replicas"):
        made.executors[1].observe(StageObserver())
    assert all(runner.recorded is None for _, runner in made.executors[1].runners)


def test_a_parameter_that_two_nodes_share_gets_its_gradient_once():
    one, other, x = Scale(), Scale(), torch.full((1, 1), 3.0)
    other.weight = one.weight
    operation = RecordedOperation(calls, "the backward of a, b", [one, other])
    for _ in range(WARM_UP + COMPARED + 1):
        operation(one.differentiated, (x,))
    assert one.weight.grad.item() == 3.0 * (WARM_UP + COMPARED + 1)


# --- compiled blocks ---


IMAGE = (3, 6, 6)


@pytest.fixture
def backend(monkeypatch):
    """Compile with another backend than Inductor, and forget afterwards what was compiled."""
    from torch._dynamo.testing import CompileCounter

    compiler = torch.compile

    def use(chosen=None):
        chosen = chosen or CompileCounter()
        monkeypatch.setattr(torch, "compile", partial(compiler, backend=chosen))
        return chosen

    torch.compiler.reset()
    yield use
    torch.compiler.reset()


def trained(compiled, nodes, shape, **settings):
    built = pipeline(nodes, shape, compiled=compiled, batch=4, **settings)
    built.train(batches(shape, 4))
    return built.parameters()


def test_with_stored_weights_and_running_statistics_it_trains_as_it_does_with_blocks_as_written(backend):
    backend("aot_eager")
    found, expected = (trained(one, (*REVNET[:2], REVNET[-1]), IMAGE, method="pipedream") for one in (True, False))
    assert relative_error(found, expected) < 1e-10


def test_random_numbers_are_refused(backend):
    backend("eager")
    nodes = (CHAIN[0], node("rev", "rev-mlp", hidden=7, dropout=0.5), node("head", "pool-linear", outputs=CLASSES))
    with pytest.raises(RunFailed, match='node "rev" cannot be compiled: it draws random numbers'):
        pipeline(nodes, (8,), compiled=True, batch=4).train(batches((8,), 1))
