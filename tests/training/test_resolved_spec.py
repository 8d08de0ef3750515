"""The resolved specification says everything that was decided."""

from __future__ import annotations

import attrs
import pytest

from petra_graph.program.stage_program import Partition
from petra_graph.spec.load_spec import dump
from petra_graph.training.prepare import prepare
from petra_graph.training.resolved_spec import resolved
from tests.support.runs import SPEC


@pytest.fixture
def prepared(write):
    return lambda *overrides: prepare(write("small.toml", SPEC), overrides)


@pytest.mark.parametrize("devices", [("cpu",), ("a", "b"), ("a", "b", "a"), ("a", "b", "c", "d", "e", "f")])
def test_devices_are_placed_again_as_they_were(prepared, devices):
    """The distinct devices alone would be spread anew: a, b, a over four stages became a, b."""
    given = prepared()
    stages = Partition(stages=given.placement.stages)
    placed = stages.spread_over(devices)
    programs = zip(given.programs, placed.stages, strict=True)
    spec = resolved(attrs.evolve(given, programs=tuple(attrs.evolve(p, device=s.device) for p, s in programs)))
    assert spec.partition.stages == tuple(stage.nodes for stage in placed.stages)
    assert stages.spread_over(spec.partition.devices) == placed


def test_it_is_read_back_as_it_was_written(prepared, write):
    given = prepared("partition.stages=[['stem', 'rev.0'], ['rev.1', 'head']]")
    again = prepare(write("resolved.toml", dump(resolved(given))))
    assert dump(again.spec) == dump(resolved(given))
    assert resolved(again) == resolved(given)
    assert again.programs == given.programs
