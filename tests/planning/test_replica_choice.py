"""`replicas = "auto"`: the fastest number of pipelines for the same devices and the same samples."""

from __future__ import annotations

import pytest

from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.planning.compare_plans import compare
from petra_graph.planning.plan_spec import Planner, plan
from petra_graph.spec.load_spec import dump
from petra_graph.training.prepared_run import prepare
from petra_graph.training.record.resolved_spec import resolved
from tests.support.runs import SPEC

FOUR = ("partition.devices=4", "partition.device_type=h100", "partition.stages=2")
AUTO = 'partition.replicas="auto"'


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def speed(spec, *overrides):
    found = plan(spec, overrides)
    timing, own = found.prediction.timing, found.spec
    return timing.samples_per_second(own.data.batch, own.partition.pipelines)


def stated(spec, replicas, *more):
    words = (f"partition.devices={4 // replicas}", f"data.batch={128 // replicas}", f"partition.replicas={replicas}")
    return speed(spec, *FOUR[1:], *words, *more)


def chosen(spec, *more):
    found = plan(spec, [*FOUR, AUTO, *more])
    return found.spec.partition.replicas, found.spec.partition.devices, found.spec.data.batch, found


@pytest.mark.parametrize(
    "more", [(), ("partition.stages=per-block",), ("method.name=gpipe", "method.schedule=fill-drain")]
)
def test_the_fastest_that_divides_devices_and_samples(spec, more):
    replicas, devices, batch, found = chosen(spec, *more)
    speeds = {each: stated(spec, each, *more) for each in (1, 2, 4)}
    assert speeds[replicas] == max(speeds.values()) == speed(spec, *FOUR, AUTO, *more)
    assert (devices * replicas, batch * replicas) == (4, 128)
    (said,) = [text for text in found.document(with_timeline=False)["assumptions"] if text.startswith("replicas")]
    each = f"{devices} device{'s' * (devices > 1)} and {batch} samples of a micro-batch each"
    assert said.startswith(f'replicas = "auto" is {replicas}, with {each}: ')
    assert said.count(" would do ") == 2


def test_what_does_not_fit_is_not_taken(spec):
    """One device holds the whole network for a quarter of the samples, or half of it for half of them: the limit leaves one choice."""
    bytes_of = {}
    for replicas in (1, 2, 4):
        words = (f"partition.devices={4 // replicas}", f"data.batch={128 // replicas}", "partition.device_type=h100")
        held = plan(spec, [*words, "partition.stages=4"]).prediction.device_memory.values()
        bytes_of[replicas] = max(one.total for one in held)
    order = sorted(bytes_of, key=bytes_of.__getitem__)
    limit = f"partition.memory={(bytes_of[order[0]] + bytes_of[order[1]]) // 2}B"
    replicas, _, _, found = chosen(spec, "partition.stages=4", limit)
    assert replicas == order[0]
    (said,) = [text for text in found.document(with_timeline=False)["assumptions"] if text.startswith("replicas")]
    assert said.count("would not fit") == 2
    with pytest.raises(NoFeasiblePlan, match="would hold"):
        chosen(spec, "partition.stages=4", "partition.memory=1KiB")


def test_numbers_that_do_not_divide_the_micro_batch_are_not_tried(spec):
    assert chosen(spec, "data.batch=127")[:3] == (1, 4, 127)


def test_what_a_run_would_refuse_is_not_taken(spec):
    clip = 'optimizer.clip={limit=1.0, scope="global"}'
    replicas, *_, found = chosen(spec, "method.name=backprop", "method.schedule=sequential", clip)
    assert replicas == 1
    (said,) = [text for text in found.document(with_timeline=False)["assumptions"] if text.startswith("replicas")]
    assert "2 would be refused" in said


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('partition.devices=["cuda:0", "cuda:1"]', "and devices is a list"),
        ('partition.memory=["1GiB", "1GiB", "1GiB", "1GiB"]', "and memory is a list"),
    ],
)
def test_lists_of_devices_are_refused(spec, more, message):
    with pytest.raises(SpecError, match=message):
        plan(spec, [*[one for one in FOUR if one.partition("=")[0] not in more], AUTO, more])


def test_all_methods_are_compared_with_the_same_replicas(spec):
    """They are those of the specification's own plan: alone, backprop would have two here."""
    slow = 'partition.device.slow={kind="cpu", memory="1GiB", flops={float32=1e8}, memory_bandwidth=1e8}'
    words = (slow, "partition.device_type=slow", "partition.devices=2", "data.batch=8")
    waits = ("method.name=backprop", "method.schedule=sequential")
    assert plan(spec, [*words, AUTO, *waits]).spec.partition.replicas == 2
    assert plan(spec, [*words, AUTO]).spec.partition.replicas == 1
    assert compare(Planner(spec, [*words, AUTO])) == compare(Planner(spec, words))


def test_a_run_has_them_resolved(spec, write):
    """It needs as many processes as the plan has devices; its resolved specification has numbers."""
    words = ["partition.devices=2", "partition.device_type=cpu", "partition.stages=2", AUTO]
    planned = plan(spec, words).spec
    prepared = prepare(spec, words, processes=2)
    own = resolved(prepared)
    assert own.partition.replicas == planned.partition.replicas
    assert own.data.batch * own.partition.replicas == 128
    again = prepare(write("resolved.toml", dump(own)), (), processes=2)
    assert resolved(again) == own
    assert prepared.opened.batches.whole == 128
