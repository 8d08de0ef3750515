"""The warnings of plans."""

from __future__ import annotations

import pytest

from petra_graph.planning.plan_spec import plan
from tests.support.runs import SPEC

EACH = ("partition.device_type=cpu", "partition.link_latency=0", "method.accumulation=1")
EIGHT = (*EACH, "graph.node.1.repeat=6", "partition.devices=8", "method.schedule=lockstep")


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def said(spec, *more):
    return plan(spec, more).document(with_timeline=False)["warnings"]


def depths(lines):
    return [line for line in lines if 'set method.schedule = "auto"' in line]


def test_one_line_names_less_depth(spec):
    (line,) = depths(said(spec, *EIGHT))
    assert line.endswith('set method.schedule = "auto"')
