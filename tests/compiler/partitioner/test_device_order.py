"""The best order of unlike devices is the best of all orders, found without looking at each."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.partitioner.device_order import Kind, best_order
from petra_graph.compiler.partitioner.lower_bound import Work, filled_bound
from tests.support.examples import examples


def work(seconds, stage_seconds=0.0):
    return Work(seconds=np.append(0.0, np.cumsum(seconds)), stage_seconds=stage_seconds)


@st.composite
def chains(draw):
    """Kinds of devices with their own seconds for each item, how many devices are used, and messages."""
    items = draw(st.integers(2, 7))
    small = st.integers(0, 9)
    kinds, devices = [], 0
    for count in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
        inner = work(draw(st.lists(small, min_size=items, max_size=items)), draw(small))
        last = work(draw(st.lists(small, min_size=items, max_size=items)), inner.stage_seconds)
        kinds.append(Kind(devices=range(devices, devices + count), inner=inner, last=last))
        devices += count
    messages = np.array([0.0, *draw(st.lists(small, min_size=items - 1, max_size=items - 1)), 0.0])
    return kinds, draw(st.integers(1, min(devices, items, 5))), messages


def seconds_of(order, kinds, messages):
    kind_of = {device: kind for kind in kinds for device in kind.devices}
    row = [*(kind_of[device].inner for device in order[:-1]), kind_of[order[-1]].last]
    return filled_bound(row, messages, 0.0)


@examples(60)
@given(chains())
def test_no_order_is_better(drawn):
    kinds, used, messages = drawn
    found = best_order(kinds, used, messages, 0.0)
    every = [
        seconds_of(order, kinds, messages) for order in permutations(range(sum(len(k.devices) for k in kinds)), used)
    ]
    assert len(set(found.devices)) == used
    assert seconds_of(found.devices, kinds, messages) == pytest.approx(min(every), rel=1e-9, abs=1e-9)
    assert found.bound == pytest.approx(min(every), rel=1e-9, abs=1e-9)
    assert found.bound <= min(every)


def test_devices_go_where_they_are_fast():
    # Two are fast at the first items, two at the last.
    one, other = [1] * 4 + [9] * 4, [9] * 4 + [1] * 4
    kinds = [
        Kind(devices=devices, inner=work(own), last=work(own)) for devices, own in (((0, 2), other), ((1, 3), one))
    ]
    found = best_order(kinds, 4, np.zeros(9), 0.0)
    assert found.devices == (1, 3, 0, 2)
    assert found.bound == pytest.approx(2)


def test_too_many_kinds_are_left_to_others():
    kind = Kind(devices=(0,), inner=work([1, 1]), last=work([1, 1]))
    assert best_order([evolve(kind, devices=(number,)) for number in range(18)], 2, np.zeros(3), 0.0) is None
