"""What a plan and a run say about delay: one way to lower it, and where split backwards lower none."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main
from petra_graph.planning.plan_spec import plan
from tests.support.runs import SPEC

EACH = ("partition.device_type=cpu", "partition.link_latency=0", "method.accumulation=1")
EIGHT = (*EACH, "graph.node.1.repeat=6", "partition.devices=8", "method.schedule=lockstep")
SPLIT = "method.split_backward=true"
IN_VAIN = (
    "with 2 stages, split backwards have no less delay than whole ones and are no faster, unless messages take long, and their graphs "
    "take more memory: set method.split_backward = false"
)


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def said(spec, *more):
    return plan(spec, more).document(with_timeline=False)["warnings"]


def depths(lines):
    return [line for line in lines if 'set method.schedule = "auto"' in line]


def test_one_line_names_less_depth_and_split_backwards_come_first(spec):
    """There were two, of depth 8 and of depth 5 in place of 15."""
    (line,) = depths(said(spec, *EIGHT))
    assert line.endswith('set method.schedule = "auto" and method.split_backward = true')


def test_whole_backwards_are_named_where_split_ones_are_refused(spec):
    (line,) = depths(said(spec, *EIGHT, "method.last_stage=keep-graph"))
    assert line.endswith('set method.schedule = "auto"')


@pytest.mark.parametrize("schedule", ["lockstep", "auto"])
def test_split_backwards_of_two_stages_gain_nothing(spec, schedule):
    two = (*EACH, "partition.stages=2", "partition.devices=2", f"method.schedule={schedule}")
    assert said(spec, *two, SPLIT).count(IN_VAIN) == 1
    whole, split = (plan(spec, (*two, *more)).prediction for more in ((), (SPLIT,)))
    assert [program.depth for program in split.programs] == [program.depth for program in whole.programs]
    assert split.timing.tick_seconds == pytest.approx(whole.timing.tick_seconds)
    assert sum(held.total for held in split.memory) > sum(held.total for held in whole.memory)


@pytest.mark.parametrize(
    "more",
    [
        ("partition.stages=2",),
        ("partition.stages=3", SPLIT),
        ("partition.stages=2", 'method.split_backward=["FRIW", "FRIW"]'),
    ],
    ids=["whole", "three stages", "listed"],
)
def test_nothing_is_said_where_they_gain_or_nobody_asked_for_them(spec, more):
    assert not [line for line in said(spec, *EACH, "partition.devices=2", *more) if "split backwards have" in line]


def test_a_run_says_so_too(spec, capsys):
    words = [word for pair in ("partition.stages=2", SPLIT) for word in ("--set", pair)]
    assert main(["run", spec, *words, "--dry-run"]) == 0
    heard = capsys.readouterr()
    assert (heard.out + heard.err).replace("\n", " ").count("split backwards have no less delay") == 1
