"""The least depths keep full throughput, and nothing less deep does."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from attrs import evolve
from hypothesis import given

from petra_graph.compiler.simulator.least_depths import least_depths, with_depths
from petra_graph.compiler.simulator.pipeline import Pipeline, StageSeconds
from petra_graph.compiler.simulator.steady_state import tick, unbounded_tick
from petra_graph.program.device_types import Link
from tests.support.examples import examples
from tests.support.simulated_pipelines import UNITS, chain, chains, graphs

TIGHT = 1e-9


@pytest.mark.parametrize("stages", [1, 2, 5, 18])
def test_1f1b_is_the_least_for_equal_stages_and_free_links(stages):
    assert least_depths(chain(stages), TIGHT) == tuple(range(stages, 0, -1))


@pytest.mark.parametrize("stages", [2, 6, 18])
def test_lockstep_is_the_least_where_a_hop_takes_half_a_tick(stages):
    """A forward, a hop and a backward's hop fill two ticks a stage: PETRA's equation (5) has such hops."""
    model = chain(stages, link=Link(latency_seconds=2))
    assert least_depths(model, TIGHT) == tuple(2 * distance + 1 for distance in range(stages - 1, -1, -1))


def test_light_stages_need_not_run_ahead():
    """A bottleneck at the head: the stages before it have time to wait."""
    light = StageSeconds(forward=0.1, backward=0.1)
    assert least_depths(chain(4, "1f1b", [light, light, light, UNITS])) == (2, 2, 2, 1)


def descending(model: Pipeline, most: tuple[int, ...]):
    """All depths up to `most` that do not grow."""
    for depths in product(*(range(1, each + 1) for each in most)):
        if depths[-1] == 1 and all(a >= b for a, b in pairwise(depths)):
            yield depths


@examples(40)
@given(chains(max_stages=4, flush=False))
def test_on_a_chain_every_depth_is_the_least_that_any_choice_has(model: Pipeline):
    """Against brute force: at each stage, no depths at full throughput go lower."""
    near = {
        key: evolve(channel, latency_seconds=min(channel.latency_seconds, 0.25))
        for key, channel in model.channels.items()
    }
    model = evolve(model, channels=near)
    found = least_depths(model, TIGHT)
    limit = unbounded_tick(model) * (1 + TIGHT)
    assert tick(with_depths(model, found)).seconds <= limit * (1 + TIGHT)
    least = found
    for depths in descending(model, found):
        if tick(with_depths(model, depths)).seconds <= limit:
            least = tuple(map(min, least, depths))
    assert found == least


@examples(40)
@given(graphs())
def test_on_a_graph_depths_keep_full_throughput_and_descend(model: Pipeline):
    found = least_depths(model)
    depth = {stage.index: each for stage, each in zip(model.stages, found, strict=True)}
    assert found[-1] == 1
    assert all(depth[producer] >= depth[consumer] for producer, consumer in model.graph.edges)
    deep = with_depths(model, found)
    assert tick(deep).seconds <= unbounded_tick(model) * (1 + 1e-3) * (1 + TIGHT)


@examples(10)
@given(graphs(shared=True))
def test_where_devices_host_several_stages_depths_are_as_fast_as_any_tried(model: Pipeline):
    found = least_depths(model)
    assert found[-1] == 1
    reached = tick(with_depths(model, found)).seconds
    distance = [len(model.stages) - stage.index for stage in model.stages]
    assert reached <= tick(with_depths(model, [1 + each for each in distance])).seconds * (1 + 2e-3)


def test_two_hundred_stages_and_their_updates():
    model = chain(
        200, "1f1b", StageSeconds(forward=1, backward=3, update=0.5), accumulation=8, link=Link(latency_seconds=0.3)
    )
    found = least_depths(model)
    assert found[-3:] == (5, 3, 1)
    assert tick(with_depths(model, found)).seconds <= unbounded_tick(model) * 1.001
