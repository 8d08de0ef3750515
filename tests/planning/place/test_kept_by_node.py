"""What nodes keep where that is open: against all choices by brute force, and what the plan says."""

from __future__ import annotations

import random
from functools import partial
from itertools import product
from math import inf

import pytest
from attrs import evolve

from petra_graph.compiler.cut_search import held_bytes
from petra_graph.compiler.lower import partition
from petra_graph.compiler.placement_search import cut_and_place, resolved_placement, within_memory
from petra_graph.compiler.prediction import Prediction
from petra_graph.compiler.simulator.steady_state import tick
from petra_graph.errors import NoFeasiblePlan
from petra_graph.planning.place.kept_by_node import kept_by_kind, place_and_keep
from tests.support.costs import costs
from tests.support.pipelines import CHAIN, CLASSES, node
from tests.support.settings import UNITS, setting

SIX = (
    *CHAIN[:3],
    node("middle", "rev-mlp", kind="buffered", hidden=5),
    node("late", "rev-mlp", hidden=9, activation="tanh"),
    node("head", "pool-linear", outputs=CLASSES),
)
METHODS = ("1f1b-flush", "gpipe", "backprop", "petra", "pipedream", "reversible-backprop")


def random_setting(draw, nodes, table):
    method = draw.choice(METHODS)
    seconds = {
        (one.name, operation): units * draw.uniform(0.5, 1.5) for one in nodes for operation, units in UNITS.items()
    }
    count = draw.choice([1, 2])
    made = setting(
        count,
        method=method,
        accumulation=draw.choice([1, 2, 4]),
        nodes=nodes,
        table=table,
        allow_stored=draw.random() < 0.3,
    )
    clocks = {device.name: lambda *at: seconds.get(at, 0.0) for device in made.devices}
    return evolve(made, clocks=clocks)


def under(inputs, limit):
    return evolve(inputs, devices=tuple(evolve(device, memory_bytes=limit) for device in inputs.devices))


def all_choices(inputs, stages):
    """Yield the bytes of the fullest device and the tick of every choice in these stages, those with equal programs once."""
    names = [name for name in inputs.graph.order if name != inputs.graph.head]
    kinds = [inputs.graph.nodes[name].kind for name in names]
    seen = set()
    for keeps in product(*(("nothing", "input", "graph")[kind == "buffered" :] for kind in kinds)):
        asked = evolve(inputs, kept=dict(zip(names, keeps, strict=True)))
        placement = resolved_placement(asked, stages)
        programs = asked.placed(placement)
        if programs not in seen:
            seen.add(programs)
            yield max(held_bytes(asked, placement)), tick(asked.pipeline(programs)).seconds


@pytest.mark.parametrize(
    ("nodes", "count"),
    [pytest.param(CHAIN, 1, id="five nodes"), pytest.param(SIX, 4, marks=pytest.mark.thorough, id="six nodes")],
)
def test_against_all_choices(nodes, count):
    """Nothing above a limit, nothing refused that fits; most often the best of all, and else not much slower.

    `tools/bench/placements.py --keep given` has more of them.
    """
    draw, table, times = random.Random(7), costs(nodes, (8,)), []
    for _ in range(count):
        inputs = random_setting(draw, nodes, table)
        order, devices = inputs.graph.order, [device.name for device in inputs.devices]
        at = draw.randint(1, len(order) - 1)
        stages = partition(
            inputs.graph, [order[:at], order[at:]][2 - len(devices) :] if len(devices) > 1 else [order], devices
        )
        every = list(all_choices(inputs, stages))
        sizes = sorted({held for held, _ in every})
        for limit in [sizes[0] - 1, sizes[0], *draw.sample(sizes, min(count, len(sizes))), sizes[-1]]:
            best = min((seconds for held, seconds in every if held <= limit), default=inf)
            limited = under(inputs, limit)
            try:
                found = place_and_keep(limited, partial(within_memory, stages=stages), fill=True)
            except NoFeasiblePlan:
                assert best == inf
                continue
            assert max(held_bytes(limited, found)) <= limit
            times.append(tick(Prediction(inputs=limited, placement=found).pipeline).seconds / best)
    assert max(times) < 1.12
    assert sum(ratio < 1 + 1e-9 for ratio in times) >= 0.9 * len(times)


def test_without_limits_every_node_keeps_what_is_fastest():
    """Units: a kept graph takes 3 of the 4 of both other ways, where no update comes between."""
    found = place_and_keep(setting(2, method="1f1b-flush"), partial(cut_and_place, stages=2), fill=True)
    assert set(found.kept.values()) == {"graph"}
    found = place_and_keep(setting(2, schedule="1f1b"), partial(cut_and_place, stages=2), fill=True)
    last = found.stages[-1].nodes
    assert {name for name, keeps in found.kept.items() if keeps == "graph"} == {*last} - {"head"}


def test_nodes_of_delayed_stages_keep_graphs_only_where_parameters_may_be_stored():
    search = partial(cut_and_place, stages=2)
    used = setting(2, schedule="1f1b", allow_stored=True)
    found = place_and_keep(used, search, fill=True)
    first = used.placed(found)[0]
    assert {(segment.keeps, segment.backward) for segment in first.segments} == {("graph", "stored")}


def test_more_memory_is_never_slower():
    free = setting(2, method="1f1b-flush", accumulation=4, weights={"rev0": 2.0, "rev2": 3.0})
    search = partial(cut_and_place, stages=2)
    least, most = (max(held_bytes(free, place_and_keep(free, search, fill=fill))) for fill in (False, True))
    ticks = []
    for limit in range(least, most + 1, (most - least) // 4):
        limited = under(free, limit)
        found = place_and_keep(limited, search, fill=True)
        assert max(held_bytes(limited, found)) <= limit
        ticks.append(tick(Prediction(inputs=limited, placement=found).pipeline).seconds)
    assert ticks == sorted(ticks, reverse=True)
    assert ticks[0] > ticks[-1]


def test_the_plan_says_what_was_chosen_and_gained():
    found = place_and_keep(setting(1, method="1f1b-flush"), partial(cut_and_place, stages=1), fill=True)
    assert found.notes == (
        'method.keep = "auto": 4 keep their graphs, for 15 s a micro-batch; if every node kept as little as it can, 19 s',
    )
    assert found.guarantee == "the smallest tick found, of cuts for 2 choices of what nodes keep"


def test_for_least_memory_nodes_keep_least():
    used = setting(2, method="gpipe")
    found = place_and_keep(used, partial(cut_and_place, stages=2), fill=False)
    assert found.kept == kept_by_kind(used.graph)
    assert found.notes == ()
