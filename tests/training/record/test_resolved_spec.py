"""The resolved specification says everything that was decided."""

from __future__ import annotations

import attrs
import pytest

from petra_graph.program.placement import Partition
from petra_graph.spec.load_spec import dump
from petra_graph.spec.model import InputSpec
from petra_graph.training.prepare import prepare
from petra_graph.training.resolved_spec import resolved
from tests.support.runs import SPEC


@pytest.fixture
def prepared(write):
    return lambda *overrides: prepare(write("small.toml", SPEC), overrides)


def test_nodes_are_written_out(prepared):
    nodes = resolved(prepared()).graph.node
    assert [(node.name, node.kind, node.inputs, node.repeat) for node in nodes] == [
        ("stem", "buffered", ("input",), 1),
        ("rev.0", "reversible", ("stem",), 1),
        ("rev.1", "reversible", ("rev.0",), 1),
        ("head", "head", ("rev.1",), 1),
    ]


def test_every_option_has_its_value(prepared):
    spec = resolved(prepared())
    assert spec.graph.node[1].options == {"hidden": 12, "activation": "relu", "dropout": 0.1}
    assert spec.optimizer.options == {
        "lr": 0.05,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 0.0,
    }
    assert spec.data.options["crop_padding"] == 1
    assert {"mean", "std", "test_share"} <= set(spec.data.options)


def test_what_was_chosen_is_named(prepared):
    spec = resolved(prepared())
    assert spec.graph.input == InputSpec(shape=(1, 8, 8), dtype="uint8")
    assert (spec.method.name, spec.method.schedule) == ("petra", "1f1b")
    assert spec.partition.stages == (("stem",), ("rev.0",), ("rev.1",), ("head",))
    assert spec.architecture is None


def test_the_methods_own_schedule_is_named(write):
    path = write("small.toml", SPEC.replace('schedule = "1f1b"\n', ""))
    assert resolved(prepare(path, ["method.name=backprop"])).method.schedule == "sequential"


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
