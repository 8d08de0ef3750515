"""The tick is what theory knows and what a longest path says; the least depths keep full speed, and nothing less deep does."""

from fractions import Fraction
from itertools import pairwise, product

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.timing import device_shares, full_speed, least_depths, simulate, tick, timing
from petra_graph.program.device_types import Link
from petra_graph.program.schedule import program_order
from petra_graph.program.simulation import Pipeline, StageSeconds
from tests.support.simulated_pipelines import SHORT, UNITS, chain, chains, graphs, programs, timed

EQUAL = 1e-9
"""Between a sum of floats and the same in another order."""


@pytest.mark.parametrize("stages", [2, 5, 18])
@pytest.mark.parametrize("latency", [0.1, 0.5, 1.0])
def test_a_hop_adds_its_latency_to_1f1b(stages, latency):
    """By 2L(J-1)/J: a round trip over J-1 hops, shared by J micro-batches."""
    found = tick(chain(stages, link=Link(latency_seconds=latency)))
    assert found.exact
    assert found.seconds == pytest.approx(4 + 2 * latency * (stages - 1) / stages, rel=EQUAL)


@pytest.mark.parametrize("schedule", ["fill-drain", "1f1b"])
@pytest.mark.parametrize(("stages", "window"), [(2, 1), (4, 4), (4, 8), (6, 3)])
def test_a_flush_costs_its_bubble(schedule, stages, window):
    """(J-1)/(M+J-1) of the time, for equal stages; one forward and one backward each way."""
    found = tick(chain(stages, schedule, SHORT, accumulation=window, flush="window")).seconds
    bubble = Fraction(stages - 1, window + stages - 1)
    assert found == pytest.approx(float(3 / (1 - bubble)), rel=EQUAL)


SLOW = StageSeconds(forward=2, backward=5, update=1)


@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        (chain(4, "lockstep", [UNITS, SLOW, UNITS, SHORT], accumulation=2), 7.5),
        # F of the first, both of the second, B of the first: one micro-batch at a time there, and the third has time.
        (chain(3, (1, 1, 1), [UNITS, UNITS, StageSeconds(forward=0.5, backward=0.5)]), 9),
        (chain(3, (3, 1, 1), [StageSeconds(forward=0.5, backward=0.5), UNITS, UNITS]), 8),
        (timed(programs(4, "1f1b"), [UNITS, UNITS, UNITS, SHORT], devices="aabb"), 8),
        (chain(2, (2, 1), [StageSeconds(forward=1, backward=1), StageSeconds(forward=2, backward=2)]), 4),
    ],
    ids=[
        "one stage",
        "all in turn",
        "two in turn",
        "a device",
        "a device that is not free when a state seems to recur",
    ],
)
def test_the_slowest_stage_cycle_or_device_is_the_tick(model, seconds):
    found = timing(model)
    assert (found.tick_seconds, found.exact) == (seconds, True)


def longest_paths(model: Pipeline, count: int) -> dict[tuple[int, str, int], float]:
    """When each operation starts where a device has one stage, without an order among devices: after what it waits for."""
    orders = {stage.index: list(program_order(stage, range(count))) for stage in model.stages}
    starts: dict[tuple[int, str, int], float] = {}
    free: dict[object, float] = {}
    waiting = True
    while waiting:
        waiting = False
        for index, actions in orders.items():
            while actions:
                verb, m = actions[0]
                read = [
                    (key, one) for key, one in model.channels.items() if (one.receiver, key.direction) == (index, verb)
                ]
                if any((key, m) not in free for key, _ in read):
                    break
                start = max([free.get(index, 0.0), *(free[key, m] for key, _ in read)])
                starts[index, verb, m] = start
                end = free[index] = start + getattr(model.seconds[index - 1], verb)
                for key, one in model.channels.items():
                    if (one.sender, key.direction) == (index, verb):
                        enters = max(end, free.get(one.link, 0.0))
                        free[one.link] = enters + one.occupies_seconds
                        free[key, m] = enters + one.seconds
                del actions[0]
                waiting = True
    return starts


@given(st.one_of(chains(), graphs()))
def test_the_simulation_and_its_tick_are_those_of_longest_paths(model: Pipeline):
    """Two independent programs: a queue of operations, and waits alone."""
    deepest, k = max(stage.depth for stage in model.stages), model.accumulation
    count = k * min(600 // k, 40 * deepest)
    starts = longest_paths(model, count)
    found = {(event.stage, event.verb, event.micro_batch): event.start for event in simulate(model, count)}
    assert found == pytest.approx(starts, rel=EQUAL)
    forwards = [starts[model.stages[-1].index, "forward", m] for m in range(count - 2 * deepest)]
    whole = len(forwards) // 2 // k * k
    mean = (forwards[-1] - forwards[-1 - whole]) / whole
    now = tick(model)
    assert now.seconds == pytest.approx(mean, rel=2 * deepest / whole)
    periods = [span for span in range(k, whole // 2, k) if repeats(forwards[whole:], span)]
    assert (
        not now.exact
        or not periods
        or now.seconds == pytest.approx((forwards[-1] - forwards[-1 - periods[0]]) / periods[0], rel=EQUAL)
    )


def repeats(starts: list[float], span: int) -> bool:
    steps = [after - before for before, after in zip(starts, starts[span:], strict=False)]
    return max(steps) - min(steps) <= EQUAL * max(steps)


@given(st.data(), chains(flush=False))
def test_running_further_ahead_is_never_slower_and_far_ahead_is_full_speed(data, model: Pipeline):
    """A stage with all before it: distance between two depths is what loosens waits."""
    place = data.draw(st.integers(0, len(model.stages) - 1))
    ahead = [stage.depth + (at < place) for at, stage in enumerate(model.stages)]
    found = tick(model.with_depths(ahead)).seconds
    assert found <= tick(model).seconds * (1 + EQUAL)
    far = [1 + 60 * distance for distance in range(len(model.stages) - 1, -1, -1)]
    assert found * (1 + EQUAL) >= tick(model.with_depths(far)).seconds == pytest.approx(full_speed(model), rel=EQUAL)


@pytest.mark.parametrize(
    ("placement", "policy"), [("aabb", "arrival"), ("aaab", "arrival"), ("abab", "arrival"), ("aaab", "static")]
)
def test_several_stages_on_a_device_share_it(placement, policy):
    """Deep enough, the device with most work is never idle."""
    model = evolve(timed(programs(4, (30, 20, 10, 1)), [UNITS] * 4, devices=placement), policy=policy)
    found = tick(model)
    assert found.exact
    assert found.seconds == pytest.approx(4 * max(placement.count("a"), placement.count("b")), rel=EQUAL)


def test_in_one_order_a_stage_waits_for_another_ones_turn():
    """The third stage goes first on a device, though its message is not there yet and the first could begin."""
    model = timed(programs(4, (30, 20, 10, 1)), [UNITS] * 4, devices="abab")
    assert tick(model).seconds == 8
    assert tick(evolve(model, policy="static")).seconds == pytest.approx(9, rel=EQUAL)


def test_a_long_pipeline_has_its_pace_once_it_is_full():
    """90 stages on 30 devices had a tick that was 14 times too long: a mean of the time in which they were filled."""
    model = timed(
        programs(90), [UNITS] * 90, devices=[str(at // 3) for at in range(90)], link=Link(latency_seconds=0.1)
    )
    assert tick(model) == (pytest.approx(12.0, rel=0.01), True)


@given(st.data())
def test_any_durations_on_shared_devices_have_a_period(data):
    """Sums of floats hid it: 18 stages on 8 devices had a mean over 60,000 operations instead."""
    placement = data.draw(st.text("ab", min_size=3, max_size=6).filter(lambda text: len(set(text)) == 2))
    stages, schedule = len(placement), data.draw(st.sampled_from(["1f1b", "lockstep"]))
    numbers = st.floats(0.1, 3)
    seconds = [StageSeconds(forward=data.draw(numbers), backward=data.draw(numbers)) for _ in placement]
    model = timed(programs(stages, schedule), seconds, devices=placement, link=Link(latency_seconds=data.draw(numbers)))
    found = timing(model)
    assert found.exact
    assert max(works for works, _ in device_shares(model, found.tick_seconds).values()) <= 1 + EQUAL


@given(chains())
def test_an_epoch_of_any_pipeline(model: Pipeline):
    count = 60 * model.accumulation
    found = timing(model)
    seconds = found.overhead_seconds + count * found.tick_seconds
    assert seconds == pytest.approx(max(event.end for event in simulate(model, count)), rel=0.1)


TIGHT = 1e-9


@pytest.mark.parametrize("stages", [1, 2, 5, 18])
def test_1f1b_is_the_least_for_equal_stages_and_free_links(stages):
    assert least_depths(chain(stages), TIGHT) == tuple(range(stages, 0, -1))


@pytest.mark.parametrize("stages", [2, 6, 18])
def test_lockstep_is_the_least_where_a_hop_takes_half_a_tick(stages):
    """A forward, a hop and a backward's hop fill two ticks a stage: PETRA's equation (5) has such hops."""
    model = chain(stages, link=Link(latency_seconds=2))
    assert least_depths(model, TIGHT) == tuple(2 * distance + 1 for distance in range(stages - 1, -1, -1))


@given(chains(max_stages=4, flush=False))
def test_on_a_chain_every_depth_is_the_least_that_any_choice_has(model: Pipeline):
    """Against brute force: at each stage, no depths at full throughput go lower."""
    near = {
        key: evolve(channel, latency_seconds=min(channel.latency_seconds, 0.25))
        for key, channel in model.channels.items()
    }
    model = evolve(model, channels=near)
    found = least_depths(model, TIGHT)
    limit = full_speed(model) * (1 + TIGHT)
    assert tick(model.with_depths(found)).seconds <= limit * (1 + TIGHT)
    least = found
    for depths in product(*(range(1, most + 1) for most in found)):
        falls = depths[-1] == 1 and all(a >= b for a, b in pairwise(depths))
        if falls and tick(model.with_depths(depths)).seconds <= limit:
            least = tuple(map(min, least, depths))
    assert found == least


@given(st.one_of(graphs(), graphs(shared=True)))
def test_on_a_graph_depths_descend_and_keep_full_throughput_where_devices_are_not_shared(model: Pipeline):
    found = least_depths(model)
    assert found[-1] == 1
    assert all(found[producer - 1] >= found[consumer - 1] for producer, consumer in model.graph.edges)
    reached = tick(model.with_depths(found)).seconds
    if len(model.hosted) == len(model.stages):
        assert reached <= full_speed(model) * (1 + 1e-3) * (1 + TIGHT)
    distance = [len(model.stages) - stage.index for stage in model.stages]
    assert reached <= tick(model.with_depths([1 + each for each in distance])).seconds * (1 + 2e-3)
