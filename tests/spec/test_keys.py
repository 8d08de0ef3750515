"""A value far beyond use is refused by its key, before anything takes its time or its memory."""

from __future__ import annotations

import pytest

from petra_graph.errors import SpecError
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.spec.keys import NODES
from petra_graph.spec.load_spec import default_name
from tests.support import ROOT

QUICKSTART = str(ROOT / "specs" / "quickstart.toml")


def refused(*overrides):
    with pytest.raises(SpecError) as caught:
        check_spec(QUICKSTART, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "limit"),
    [
        ("graph.node.layer1.repeat", "100000000", "20000"),
        ("partition.stages", "10000000", "20000"),
        ("optimizer.options.lr", "1e308", "1e+30"),
    ],
)
def test_a_slip_of_a_key(key, value, limit):
    assert f"must be at most {limit} (got " in refused(f"{key}={value}")


def test_many_repeated_nodes():
    overrides = [f"graph.node.{name}.repeat={NODES // 2}" for name in ("layer1", "layer2")]
    message = refused(*overrides)
    assert f"the network has {NODES + 3:,} nodes; at most {NODES:,} are allowed" in message


def test_what_is_legal_is_read():
    checked = check_spec(QUICKSTART, [f"graph.node.layer1.repeat={NODES - 5}"])
    assert len(checked.graph.nodes) == NODES


@pytest.mark.parametrize("key", ["name", "graph.node.0.name"])
def test_a_name_that_no_file_can_have(key):
    message = refused(f"{key}={'x' * 5_000}")
    assert "must have at most 200 bytes" in message
    assert len(message) < 6_000


def test_a_file_with_a_long_name_gives_a_name_that_a_folder_can_have():
    assert len(default_name(f"{'ü' * 120}.toml").encode()) == 200
