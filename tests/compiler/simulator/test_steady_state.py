"""The exact tick is that of a long simulation, and the one that theory knows."""

from __future__ import annotations

from fractions import Fraction

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.simulator.critical_cycle import needs_windows
from petra_graph.compiler.simulator.least_depths import with_depths
from petra_graph.compiler.simulator.pipeline import Pipeline, StageSeconds
from petra_graph.compiler.simulator.simulation import simulate
from petra_graph.compiler.simulator.steady_state import tick, timing, unbounded_tick
from petra_graph.program.device_types import Link
from tests.support.examples import examples
from tests.support.simulated_pipelines import (
    SHORT,
    UNITS,
    chain,
    chains,
    graphs,
    pipelines_of_runs,
    programs,
    timed,
)

EQUAL = 1e-9
"""Between a sum of floats and the same in another order."""


@pytest.mark.parametrize("stages", [1, 2, 5, 18])
@pytest.mark.parametrize(("schedule", "units"), [("lockstep", 4), ("1f1b", 4)])
def test_equal_stages_are_never_idle(schedule, units, stages):
    assert tick(chain(stages, schedule)).seconds == units


@pytest.mark.parametrize("stages", [2, 5, 18])
@pytest.mark.parametrize("latency", [0.1, 0.5, 1.0])
def test_a_hop_adds_its_latency_to_1f1b(stages, latency):
    """By 2L(J-1)/J: a round trip over J-1 hops, shared by J micro-batches."""
    found = tick(chain(stages, link=Link(latency_seconds=latency))).seconds
    assert found == pytest.approx(4 + 2 * latency * (stages - 1) / stages, rel=EQUAL)


@pytest.mark.parametrize("latency", [0.0, 0.7])
def test_one_after_another(latency):
    found = tick(chain(4, "sequential", link=Link(latency_seconds=latency))).seconds
    assert found == pytest.approx(4 * 4 + 2 * 3 * latency, rel=EQUAL)


@pytest.mark.parametrize(("schedule", "method"), [("fill-drain", "gpipe"), ("1f1b", "1f1b-flush")])
@pytest.mark.parametrize(("stages", "window"), [(2, 1), (4, 4), (4, 8), (6, 3)])
def test_a_flush_costs_its_bubble(schedule, method, stages, window):
    """(J-1)/(M+J-1) of the time, for equal stages; one forward and one backward each way."""
    found = tick(chain(stages, schedule, SHORT, accumulation=window, flush="window")).seconds
    bubble = Fraction(stages - 1, window + stages - 1)
    assert found == pytest.approx(float(3 / (1 - bubble)), rel=EQUAL)


def test_the_slowest_stage_sets_the_tick():
    seconds = [UNITS, StageSeconds(forward=2, backward=5, update=1), UNITS, SHORT]
    found = tick(chain(4, "lockstep", seconds, accumulation=2))
    assert (found.seconds, found.stages, found.exact) == (7.5, (2,), True)


def head_starts(model: Pipeline, count: int) -> list[float]:
    timeline = simulate(model, count)
    return [event.start for event in timeline.of(timeline.head, "forward")]


def repeats_with(starts: list[float], seconds: float, window: int) -> bool:
    """Whether the second half repeats itself after some windows, `seconds` a micro-batch."""
    second = len(starts) // 2
    for length in range(window, second // 2, window):
        steps = {starts[at] - starts[at - length] for at in range(second + length, len(starts) - length)}
        if max(steps) - min(steps) <= EQUAL:
            return steps.pop() == pytest.approx(length * seconds, rel=EQUAL)
    return False


@examples(60)
@given(st.one_of(chains(), graphs(), pipelines_of_runs()))
def test_the_exact_tick_is_the_simulated_one(model: Pipeline):
    """Two independent programs: an event queue, and cycles in a precedence graph."""
    window = model.accumulation if needs_windows(model) else 1
    count = 40 * window * max(stage.depth for stage in model.stages)
    starts = head_starts(model, min(count, 600))
    found = tick(model).seconds
    assert repeats_with(starts[: -max(stage.depth for stage in model.stages)], found, window)


@given(st.data(), chains())
def test_slower_is_never_faster(data, model: Pipeline):
    place = data.draw(st.integers(0, len(model.stages) - 1))
    stage = model.stages[place]
    slower = evolve(stage, seconds=evolve(stage.seconds, backward=stage.seconds.backward + 1))
    stages = (*model.stages[:place], slower, *model.stages[place + 1 :])
    assert tick(evolve(model, stages=stages)).seconds >= tick(model).seconds * (1 - EQUAL)


@given(st.data(), chains(flush=False))
def test_running_further_ahead_is_never_slower(data, model: Pipeline):
    """A stage with all before it: distance between two depths is what loosens waits."""
    place = data.draw(st.integers(0, len(model.stages) - 1))
    ahead = [stage.depth + (at < place) for at, stage in enumerate(model.stages)]
    found = tick(with_depths(model, ahead)).seconds
    assert found <= tick(model).seconds * (1 + EQUAL)
    assert found >= unbounded_tick(model) * (1 - EQUAL)


@given(chains(flush=False))
def test_without_bound_means_as_fast_as_any_depth(model: Pipeline):
    far = [1 + 60 * distance for distance in range(len(model.stages) - 1, -1, -1)]
    assert tick(with_depths(model, far)).seconds == pytest.approx(unbounded_tick(model), rel=EQUAL)


@pytest.mark.parametrize("placement", ["aabb", "aaab", "abab"])
def test_several_stages_on_a_device_share_it(placement):
    """Deep enough, the device with most work is never idle."""
    model = timed(programs(4, (30, 20, 10, 1)), [UNITS] * 4, devices=placement)
    found = tick(model)
    most = 4 * max(placement.count("a"), placement.count("b"))
    assert found.exact
    assert found.seconds == pytest.approx(most, rel=EQUAL)
    assert set(found.stages) <= {1, 2, 3, 4}


@examples(40)
@given(st.data())
def test_any_durations_on_shared_devices_have_a_period(data):
    """Sums of floats hid it: 18 stages on 8 devices had a mean over 60,000 operations instead."""
    placement = data.draw(st.text("ab", min_size=3, max_size=6).filter(lambda text: len(set(text)) == 2))
    stages, schedule = len(placement), data.draw(st.sampled_from(["1f1b", "lockstep"]))
    numbers = st.floats(0.1, 3)
    seconds = [StageSeconds(forward=data.draw(numbers), backward=data.draw(numbers)) for _ in placement]
    model = timed(programs(stages, schedule), seconds, devices=placement, link=Link(latency_seconds=data.draw(numbers)))
    found = tick(model)
    assert found.exact
    starts = head_starts(model, 600)
    assert (starts[550] - starts[150]) / 400 == pytest.approx(found.seconds, rel=0.02)


@pytest.mark.parametrize("schedule", ["1f1b", "lockstep", "sequential"])
def test_all_stages_on_one_device_take_as_long_as_their_work(schedule):
    assert tick(timed(programs(5, schedule), [UNITS] * 5, devices="aaaaa")).seconds == 20


def test_a_thousand_stages():
    found = tick(chain(1024, link=Link(latency_seconds=0.1))).seconds
    assert found == pytest.approx(4 + 0.2 * 1023 / 1024, rel=EQUAL)


def test_an_ideal_pipeline():
    found = timing(chain(4, "1f1b", SHORT, accumulation=2))
    assert (found.tick_seconds, found.bubble_fraction) == (3, 0)
    assert found.utilisation == {"d1": 1, "d2": 1, "d3": 1, "d4": 1}
    assert found.fill_seconds == 3
    assert found.samples_per_second(64) == pytest.approx(64 / 3)
    assert found.samples_per_second(64, replicas=3) == pytest.approx(64)


@pytest.mark.parametrize(("schedule", "stages", "window"), [("fill-drain", 4, 8), ("1f1b", 4, 8), ("fill-drain", 3, 2)])
def test_the_bubble_of_a_flush(schedule, stages, window):
    found = timing(chain(stages, schedule, SHORT, accumulation=window, flush="window"))
    assert found.bubble_fraction == pytest.approx((stages - 1) / (window + stages - 1))


@pytest.mark.parametrize("schedule", ["1f1b", "lockstep", "sequential"])
@pytest.mark.parametrize("latency", [0, 0.3])
def test_an_epoch_is_its_overhead_and_its_ticks(schedule, latency):
    model = chain(
        5, schedule, StageSeconds(forward=1, backward=3, update=1), accumulation=2, link=Link(latency_seconds=latency)
    )
    found = timing(model)
    assert found.overhead_seconds + 200 * found.tick_seconds == pytest.approx(simulate(model, 200).seconds, rel=1e-3)


@examples(25)
@given(chains())
def test_an_epoch_of_any_pipeline(model: Pipeline):
    count = 60 * model.accumulation
    found = timing(model)
    seconds = found.overhead_seconds + count * found.tick_seconds
    assert seconds == pytest.approx(simulate(model, count).seconds, rel=0.1)


def test_a_large_pipelines_overhead_is_its_fill_and_drain():
    found = timing(chain(300, "lockstep"))
    assert (found.fill_seconds, found.drain_seconds, found.overhead_seconds) == (299, 897, 1196)
    assert found.tick_seconds == 4
