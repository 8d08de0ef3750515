"""Where a run's cuts are: a function of the specification, the same in every process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.spec.model import Interval
from petra_graph.training.checkpoint import CutPlan


def plan(**values):
    usual = {"per_epoch": 10, "accumulation": 3, "flush": "drain", "every": None, "evaluations": None, "probed": ()}
    return CutPlan(**{**usual, "depth": 4, **values})


def cuts(found, epochs=3):
    return [at for at in range(epochs * found.per_epoch + 1) if found.due(at)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        ({"every": Interval(1, "epochs")}, [10, 20, 30]),
        ({"every": Interval(2, "epochs")}, [20]),
        # The last window of an epoch has one micro-batch: four updates in each.
        ({"every": Interval(1, "updates")}, [3, 6, 9, 10, 13, 16, 19, 20, 23, 26, 29, 30]),
        ({"every": Interval(5, "updates")}, [13, 26]),
        ({"every": Interval(100, "updates")}, []),
        ({"evaluations": 1}, [10, 20, 30]),
        ({"every": Interval(5, "updates"), "evaluations": 2}, [13, 20, 26]),
        # Micro-batch 2 is on its way until the first stage, of depth 4, has done its backward: before forward 6.
        ({"every": Interval(1, "updates"), "probed": (2,)}, [6, 9, 10, 16, 19, 20, 26, 29, 30]),
    ],
)
def test_where_they_are(values, expected):
    assert cuts(plan(**values)) == expected


@given(
    per_epoch=st.integers(1, 30),
    accumulation=st.integers(1, 7),
    at=st.integers(0, 100),
    probed=st.sets(st.integers(0, 29)),
    pipeline=st.tuples(st.integers(1, 9), st.sampled_from(["drain", "window"])),
)
def test_where_they_may_be(per_epoch, accumulation, at, probed, pipeline):
    depth, flush = pipeline
    positions = tuple(sorted(position for position in probed if position < per_epoch))
    found = plan(per_epoch=per_epoch, accumulation=accumulation, flush=flush, probed=positions, depth=depth)
    allowed = found.allowed(at)
    assert at <= allowed <= at + per_epoch + accumulation
    assert allowed // per_epoch == at // per_epoch or allowed % per_epoch == 0
    done = allowed % per_epoch
    if done:
        in_flight = any(position < done < position + depth for position in positions)
        assert done % accumulation == 0 if flush == "window" else not in_flight
