"""All stages in one process: errors are told, nothing is left in flight, evaluation does not depend on batches."""

import pytest
import torch

from petra_graph.errors import Interrupted, RunFailed
from petra_graph.program.simulation import static_order
from petra_graph.runtime import stage_io
from petra_graph.runtime.replicas import _StageReducer
from petra_graph.runtime.store import StoreGone
from petra_graph.spec.model import ClipSpec
from petra_graph.training.evaluation import Meters
from tests.support.pipelines import (
    CHAIN,
    CLASSES,
    GRAPHS,
    REVNET,
    SHAPES,
    Pipeline,
    batches,
    node,
    pipeline,
    relative_error,
)

EVALUATION = 1e-12
DROPOUT = (
    node("stem", "linear-stem", features=6),
    node("rev0", "rev-mlp", hidden=16, dropout=0.5),
    node("rev1", "rev-mlp", hidden=16, dropout=0.5),
    node("head", "pool-linear", outputs=CLASSES),
)


def in_flight(built: Pipeline) -> int:
    """Messages on channels, and micro-batches that stages hold."""
    held = len(built.runtime._feed.targets)
    held += sum(channel.ready() for channel in built.runtime.channels.receivers.values())
    for _, runner in (each for executor in built.executors for each in executor.runners):
        held += sum(len(getattr(runner, kept, ())) for kept in ("buffer", "graphs", "pending"))
    return held


@pytest.mark.parametrize(
    ("graph", "how", "count"),
    [
        ("chain", {"schedule": "lockstep"}, 1),
        ("revnet", {"schedule": "lockstep"}, 13),
        ("skip", {"schedule": "1f1b"}, 13),
        ("branches", {"schedule": "1f1b", "method": "paci"}, 2),
    ],
)
def test_a_drain_leaves_nothing_in_flight(graph, how, count):
    built = pipeline(GRAPHS[graph], SHAPES[graph], accumulation=2, **how)
    seen = set()
    built.runtime.train(batches(SHAPES[graph], count, size=2), range(count), lambda _: seen.add(in_flight(built) > 0))
    assert True in seen
    assert in_flight(built) == 0
    for updater in (executor.updater for executor in built.executors):
        assert (updater.updates, updater.window) == (-(-count // 2), 0)
        assert all(p.grad is None for p in updater.parameters)


@pytest.mark.parametrize("schedule", ["lockstep", "sequential"])
def test_micro_batches_are_numbered_from_the_runs_start(schedule):
    """Dropout's masks follow from the number: an epoch of 4 and one of 3 are those of numbers 0 to 3 and 4 to 6."""
    data = batches((8,), 7)
    built, again, wrong = (pipeline(DROPOUT, (8,), schedule=schedule) for _ in range(3))
    for each, second in ((built, 4), (again, 4), (wrong, 0)):
        each.train(data[:4])
        each.train(data[4:], start=second)
    assert relative_error(built.parameters(), again.parameters()) == 0.0
    assert relative_error(built.parameters(), wrong.parameters()) > 1e-6


@pytest.mark.parametrize(
    ("graph", "how"),
    [
        ("chain", {"schedule": "lockstep", "accumulation": 2}),
        ("branches", {"schedule": "1f1b"}),
        # Updates wait for one another there, wherever they stand in the order.
        ("branches", {"method": "gpipe", "accumulation": 4, "clip": ClipSpec(limit=0.1, scope="global")}),
    ],
)
def test_a_static_order_is_a_function_of_the_programs_alone_and_gives_the_same_bits(graph, how):
    built, other = (pipeline(GRAPHS[graph], SHAPES[graph], policy=policy, **how) for policy in ("static", "arrival"))
    performed = []
    for executor in built.executors:
        for verb in ("forward", "backward", "update"):
            before(
                executor, verb, lambda executor=executor, verb=verb: performed.append((executor.program.index, verb))
            )
    data = batches(SHAPES[graph], 9)
    for each in (built, other):
        each.train(data)
    ordered = [(stage, action.verb) for stage, action in static_order(built.programs, range(9))]
    assert performed == ordered or "clip" in how
    assert relative_error(built.parameters(), other.parameters()) == 0.0


def before(executor, verb: str, act) -> None:
    """Do something before each of a stage's operations."""
    operation = getattr(executor, verb)
    setattr(executor, verb, lambda *given: (act(), operation(*given))[1])


def breaking(calls: int, **more) -> Pipeline:
    """A pipeline whose second stage raises in the call of its layers that follows on so many."""
    built, left = pipeline(CHAIN, (8,), **more), iter(range(calls))

    def fails(*_):
        if next(left, None) is None:
            raise ValueError("out of luck")

    (module,) = built.executors[1].modules.values()
    next(layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)).register_forward_pre_hook(fails)
    return built


@pytest.mark.parametrize(
    ("calls", "schedule", "where"),
    [
        (2, "lockstep", "forward of micro-batch 2"),
        (1, "sequential", "backward of micro-batch 0"),
        (4, "1f1b", "backward of micro-batch 0"),
    ],
)
def test_an_error_names_stage_operation_and_micro_batch(calls, schedule, where):
    built = breaking(calls, schedule=schedule)
    with pytest.raises(RunFailed) as caught:
        built.train(batches((8,), 6))
    (problem,) = caught.value.problems
    assert problem.message == f"stage 2 (rev0) failed in the {where}: ValueError: out of luck"
    assert problem.hint == "failure.txt in the run directory has the traceback"
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("error", [Interrupted(), RunFailed("the loss is nan"), StoreGone("Broken pipe")])
def test_what_an_observer_raises_ends_the_training(error):
    built = pipeline(CHAIN, (8,), schedule="1f1b")

    def observe(result):
        if result.micro_batch == 2:
            raise error

    with pytest.raises(type(error)) as caught:
        built.runtime.train(batches((8,), 6), range(6), observe)
    assert caught.value is error
    assert built.executors[-1].updater.updates == 2


def evaluated(built: Pipeline, data) -> dict[str, float]:
    totals = Meters()
    for result in built.runtime.evaluate(data, [len(samples) for samples, _ in data]):
        totals.add(result)
    return {"samples": totals.samples, **totals.means()}


@pytest.mark.parametrize("graph", ["revnet", "branches"])
def test_evaluation_gives_the_same_for_any_batch_size_and_leaves_no_sample_out(graph):
    built = pipeline(GRAPHS[graph], SHAPES[graph], schedule="1f1b")
    built.train(batches(SHAPES[graph], 6))
    ((x, target),) = batches(SHAPES[graph], 1, size=23, seed=5)
    whole = evaluated(built, [(x, target)])
    assert whole["samples"] == 23
    assert whole["loss"] > 0
    for size in (1, 4, 10, 22):
        parts = list(zip(x.split(size), target.split(size), strict=True))
        assert len(parts[-1][0]) == 23 % size or size == 1
        assert evaluated(built, parts) == pytest.approx(whole, rel=EVALUATION)


def test_evaluation_uses_running_statistics_and_changes_nothing():
    built = pipeline(REVNET, (3, 6, 6), schedule="1f1b")
    built.train(batches((3, 6, 6), 4))
    before = built.parameters()
    one = evaluated(built, batches((3, 6, 6), 3))
    assert relative_error(built.parameters(), before) == 0.0
    assert one == evaluated(built, batches((3, 6, 6), 3))
    assert all(p.grad is None for executor in built.executors for p in executor.updater.parameters)


@pytest.mark.parametrize("clip", [None, ClipSpec(limit=1.0, scope="global")])
def test_a_stages_device_is_the_current_one_in_all_its_operations(monkeypatch, clip):
    """`set_device` was never called: kernels that a block launches on torch's current GPU went to cuda:0."""
    current: list[torch.device] = []

    class Entered:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            current.append(self.device)

        def __exit__(self, *_):
            current.pop()

    monkeypatch.setattr(stage_io, "current_device", Entered)
    built = pipeline(CHAIN, (8,), schedule="sequential", clip=clip)
    seen = []
    for executor in built.executors:
        for operation in ("forward", "backward", "update"):
            before(executor, operation, lambda: seen.append(current == [torch.device("cpu")]))
    built.train(batches((8,), 1))
    assert len(seen) == 3 * len(built.executors)
    assert all(seen)


def test_what_segments_share_is_sent_to_other_replicas_by_the_one_whose_backward_is_the_last():
    """Each sent it, and the first one before the gradient was whole."""
    (executor,) = pipeline(CHAIN, (8,), stages=(tuple(one.name for one in CHAIN),)).executors
    first, last = (
        next(part for part in executor.modules[name].modules() if isinstance(part, torch.nn.Linear))
        for name in ("rev0", "rev2")
    )
    last.weight = first.weight
    sent = _StageReducer(executor=executor, group=None, peers=(), watchdog=None)._completed_by
    every = [one for of_segment in sent.values() for one in of_segment]
    assert len(every) == len({id(one) for module in executor.modules.values() for one in module.parameters()})
    assert any(one is first.weight for one in sent["rev0"])
    assert all(one is not first.weight for one in sent["rev2"])
