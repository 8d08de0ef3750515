"""What the devices' memory allows is found, whatever the table's sums say, and larger limits never allow less."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler import cut_search
from petra_graph.compiler.cut_search import keeps
from petra_graph.compiler.lower import partition, per_block
from petra_graph.compiler.placement_search import cut_and_place, place_stages
from petra_graph.errors import NoFeasiblePlan
from petra_graph.program.placement import Partition
from tests.support.costs import costs
from tests.support.examples import examples
from tests.support.pipelines import REVNET, SHAPES
from tests.support.settings import devices, setting
from tools.bench.placements import drawn


@cache
def revnet_table():
    return costs(REVNET, SHAPES["revnet"])


def revnet(memory=None, count=3, **changes):
    return setting(count, accumulation=2, nodes=REVNET, table=revnet_table(), memory=memory, **changes)


@pytest.mark.parametrize(
    ("method", "schedule"), [("petra", "1f1b"), ("gpipe", "fill-drain"), ("reversible-backprop", "sequential")]
)
def test_the_least_limit_that_some_placement_keeps_is_kept(method, schedule):
    """Near the tightest limits the table's sums rank placements otherwise than the memory model, and refused some."""
    common = {"method": method, "schedule": schedule}
    used = revnet(**common)
    stages = partition(used.graph, per_block(used.graph), ["alone"])

    def fullest(placed):
        return max(one.total for one in used.device_memory(used.programs(placed, schedule)).values())

    least = min(
        fullest(Partition(stages=tuple(evolve(one, device=f"d{place}") for place, one in placed)))
        for first, second in combinations(range(1, len(stages.stages)), 2)
        for placed in [
            [((index >= first) + (index >= second), stage) for index, stage in enumerate(stages.stages)],
        ]
    )
    made = place_stages(revnet(least, **common), stages)
    assert fullest(made) == least
    with pytest.raises(NoFeasiblePlan):
        place_stages(revnet(least - 1, **common), stages)


def fits(table, limits):
    """Whether a placement is found, which then keeps the limits."""
    try:
        placement = table.under(limits).planned()
    except NoFeasiblePlan:
        return False
    assert keeps(table.held(placement), limits)
    return True


@examples(3)
@given(
    seed=st.integers(0, 10**6),
    share=st.floats(0, 1),
    larger=st.lists(st.floats(1, 1.5), min_size=4, max_size=4),
)
def test_no_limits_are_refused_that_a_cut_keeps_nor_what_smaller_limits_allow(seed, share, larger):
    table = drawn(seed, 40, small=True)
    every = [table.held(stages) for stages in table.placements()]
    levels = sorted({max(one) for one in every})
    limits = (levels[int(share * (len(levels) - 1))],) * len(every[0])
    assert fits(table, limits)
    assert fits(table, tuple(int(limit * times) for limit, times in zip(limits, larger, strict=False)))
    assert not fits(table, (levels[0] - 1,) * len(limits))


@pytest.mark.parametrize(
    ("seed", "limits"), [(40, (444_219, 341_707, None)), (51, (12_320_001, 12_320_001, 3_696_001, 9_856_001))]
)
def test_devices_are_tried_in_the_order_that_suits_their_limits(seed, limits):
    """The fastest order of each set of devices was tried alone, and these limits were refused."""
    table = drawn(seed, 250, small=True)
    assert any(keeps(table.held(stages), limits) for stages in table.placements())
    assert fits(table, limits)


def test_where_no_more_cuts_may_be_tried_larger_limits_allow_no_less(monkeypatch):
    """RevNet50 on four devices had a plan at 3.40 and 3.70 GiB, and none at 3.54 and 3.60 GiB."""
    monkeypatch.setattr(cut_search, "_RUNS", 500)
    table = drawn(7, 600, small=True)
    most = max(max(table.held(stages)) for stages in table.placements())
    allowed = [fits(table, (int(most * part / 40),) * len(table.inputs.devices)) for part in range(8, 42)]
    assert allowed == sorted(allowed)
    assert set(allowed) == {False, True}


def test_a_refusal_says_how_many_cuts_were_tried():
    with pytest.raises(NoFeasiblePlan, match=r"^found no cut that fits, of \d+ cuts? tried; in the nearest, device"):
        cut_and_place(revnet(1000), 3)


def test_what_no_cut_fits_is_refused_without_a_search(monkeypatch):
    """A GPT whose parameters were more than shared devices may hold was searched for 25 seconds."""
    ran = []
    whole = cut_search.held_bytes
    monkeypatch.setattr(cut_search, "held_bytes", lambda *of: ran.append(of) or whole(*of))
    with pytest.raises(NoFeasiblePlan) as refused:
        cut_and_place(revnet(1000), 3)
    assert len(ran) == 1
    assert refused.value.nearest is None, "other choices of what nodes keep are not tried"


def test_a_device_without_a_limit_may_hold_everything():
    used = revnet()
    limited = evolve(used, devices=(*devices(2, memory=1), evolve(used.devices[2], memory_bytes=None)))
    with pytest.raises(NoFeasiblePlan, match="may hold 1 bytes"):
        cut_and_place(limited, 3)
