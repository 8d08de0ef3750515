"""The few numbers that a plan shows."""

from __future__ import annotations

import pytest
from hypothesis import given

from petra_graph.compiler.simulator.pipeline import Pipeline, StageSeconds
from petra_graph.compiler.simulator.simulation import simulate
from petra_graph.compiler.simulator.timing import timing
from petra_graph.program.device_types import Link
from tests.support.examples import examples
from tests.support.simulated_pipelines import SHORT, UNITS, chain, chains, programs, timed


def test_an_ideal_pipeline():
    found = timing(chain(4, "1f1b", SHORT, accumulation=2))
    assert (found.tick_seconds, found.bubble_fraction) == (3, 0)
    assert found.utilisation == {"d1": 1, "d2": 1, "d3": 1, "d4": 1}
    assert found.fill_seconds == 3
    assert found.staleness[0] == 1.5
    assert found.samples_per_second(64) == pytest.approx(64 / 3)
    assert found.samples_per_second(64, replicas=3) == pytest.approx(64)


def test_one_after_another_is_as_fast_as_one_device():
    found = timing(chain(5, "sequential"))
    assert found.bubble_fraction == pytest.approx(0.8)
    assert set(found.staleness) == {0}


@pytest.mark.parametrize(("schedule", "stages", "window"), [("fill-drain", 4, 8), ("1f1b", 4, 8), ("fill-drain", 3, 2)])
def test_the_bubble_of_a_flush(schedule, stages, window):
    found = timing(chain(stages, schedule, SHORT, accumulation=window, flush="window"))
    assert found.bubble_fraction == pytest.approx((stages - 1) / (window + stages - 1))
    assert set(found.staleness) == {0}


def test_two_streams_count_as_two_devices():
    found = timing(chain(3, "lockstep", [UNITS, UNITS, SHORT], overlap=True))
    assert found.utilisation == {"d1": pytest.approx(4 / 6), "d2": pytest.approx(4 / 6), "d3": pytest.approx(1 / 2)}


def test_several_stages_on_one_device():
    found = timing(timed(programs(4), [UNITS] * 4, devices="aaaa"))
    assert (found.tick_seconds, found.utilisation) == (16, {"a": 1})


@pytest.mark.parametrize("schedule", ["1f1b", "lockstep", "sequential"])
@pytest.mark.parametrize("latency", [0, 0.3])
def test_an_epoch_is_its_overhead_and_its_ticks(schedule, latency):
    model = chain(
        5, schedule, StageSeconds(forward=1, backward=3, update=1), accumulation=2, link=Link(latency_seconds=latency)
    )
    found = timing(model)
    assert found.overhead_seconds + 200 * found.tick_seconds == pytest.approx(simulate(model, 200).seconds, rel=1e-3)


@examples(25)
@given(chains(capacity=False))
def test_an_epoch_of_any_pipeline(model: Pipeline):
    count = 60 * model.accumulation
    found = timing(model)
    seconds = found.overhead_seconds + count * found.tick_seconds
    assert seconds == pytest.approx(simulate(model, count).seconds, rel=0.1)


def test_a_large_pipelines_overhead_is_its_fill_and_drain():
    found = timing(chain(300, "lockstep"))
    assert (found.fill_seconds, found.drain_seconds, found.overhead_seconds) == (299, 897, 1196)
    assert found.tick_seconds == 4
