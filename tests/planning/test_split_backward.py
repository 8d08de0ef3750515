"""Plans of split backwards: the key, the words and depths that a plan finds, and what its views show."""

from __future__ import annotations

import json

import pytest

from petra_graph.errors import SpecError
from petra_graph.planning.plan_spec import plan
from petra_graph.program.plan_document import read_document
from petra_graph.report.plan.plan_contents import stage_edges
from petra_graph.report.plan.plan_on_terminal import plan_text
from petra_graph.report.plan.plan_page import plan_page
from petra_graph.report.plan.trace_events import trace_document
from tests.support.runs import SPEC

FOUR = ("partition.devices=4", "partition.device_type=cpu", "partition.link_latency=0", "method.accumulation=1")
AUTO = (*FOUR, "method.schedule=auto")
SPLIT = (*AUTO, "method.split_backward=true")


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@pytest.fixture
def split(spec):
    return plan(spec, SPLIT)


def test_a_split_backward_keeps_full_speed_with_less_depth(spec, split):
    whole = plan(spec, AUTO).prediction
    found = split.prediction
    assert found.placement.words is not None
    assert sum(program.depth for program in found.programs) < sum(program.depth for program in whole.programs)
    assert found.timing.tick_seconds <= whole.timing.tick_seconds * 1.002


def test_what_a_plan_found_can_be_listed(spec, split):
    """As in a run's resolved specification."""
    placement = split.prediction.placement
    listed = (
        *FOUR,
        f"method.schedule={list(placement.schedule)}",
        f"method.split_backward={json.dumps(placement.words)}",
    )
    assert plan(spec, listed).prediction.programs == split.prediction.programs


def test_a_schedule_by_name_has_its_own_depths_and_the_best_words(spec):
    found = plan(spec, (*FOUR, "method.split_backward=true")).prediction
    assert [program.depth for program in found.programs] == [4, 3, 2, 1]
    plain = plan(spec, (*FOUR, 'method.split_backward=["FRIW", "FRIW", "FRIW", "FRIW"]')).prediction
    assert found.timing.tick_seconds <= plain.timing.tick_seconds


def test_a_block_that_reverses_at_once_keeps_its_backward_whole(spec, monkeypatch):
    monkeypatch.setattr("petra_graph.measure.cost_table.can_reconstruct_ahead", lambda _: False)
    words = plan(spec, (*SPLIT, "data.batch=7")).prediction.placement.words
    assert [sorted(word) for word in words] == [sorted(word) for word in ("FRIW", "FB", "FB", "FRIW")]
    listed = (*SPLIT, "data.batch=7", 'method.split_backward=["FRIW", "FRIW", "FB", "FRIW"]')
    assert plan(spec, listed).prediction.placement.words[1] == "FRIW", "a list decides for itself"


def test_joined_parts_are_shown_with_the_messages_that_they_read(spec):
    listed = (*FOUR, "method.schedule=[4, 3, 2, 1]", 'method.split_backward=["RIFW", "RFB", "FB", "FRB"]')
    document = plan(spec, listed).document(with_timeline=True)
    assert read_document(json.dumps(document), "saved") == json.loads(json.dumps(document))
    assert [set(stage["seconds"]) - {"update", "exchange"} for stage in document["stages"]] == [
        {"forward", "backward", "reconstruct", "input_gradient", "parameter_gradient"},
        {"forward", "backward", "reconstruct"},
        {"forward", "backward"},
        {"forward", "backward", "reconstruct"},
    ]
    assert "I and W at once behind an R" in plan_page(document)
    arrows = {event["name"] for event in trace_document(document)["traceEvents"] if event["ph"] == "s"}
    assert arrows == {"forward", "reconstruct", "backward"}
    forward = ("forward", "forward")
    assert stage_edges(document) == {
        (1, 2): {forward, ("backward", "input_gradient")},  # The stem keeps its input, and needs no activation.
        (2, 3): {forward, ("backward", "reconstruct")},  # Both in one message.
        (3, 4): {forward, ("reconstruct", "backward"), ("backward", "backward")},
    }


def test_seconds_of_the_parts_add_up_and_messages_weigh_the_same(spec, split):
    whole = plan(spec, AUTO).document(with_timeline=False)
    for stage, other in zip(split.document(with_timeline=False)["stages"], whole["stages"], strict=True):
        seconds = stage["seconds"]
        parts = (seconds[part] for part in ("reconstruct", "input_gradient", "parameter_gradient"))
        assert sum(parts) == pytest.approx(seconds["backward"])
        assert sum(seconds[verb] for verb in ("forward", "backward")) == pytest.approx(
            sum(other["seconds"][verb] for verb in ("forward", "backward"))
        )
        assert stage["channel_bytes"] == other["channel_bytes"]
        assert {"reconstruct"} & other["seconds"].keys() == set()


def test_graphs_live_between_reconstruction_and_the_parameters_gradient(spec, split):
    assert any(held.graphs for held in split.prediction.memory)
    assert not any(held.graphs for held in plan(spec, AUTO).prediction.memory)
    assert split.prediction.checkpoint_bytes > 0


def test_views_show_the_order_and_the_parts(split):
    document = split.document(with_timeline=True)
    assert read_document(json.dumps(document), "saved") == json.loads(json.dumps(document))
    words = split.prediction.placement.words
    assert [stage["word"] for stage in document["stages"]] == list(words)
    text = plan_text(document, width=160, verbose=True)
    assert "order" in text
    assert all(word in text for word in words)
    page = plan_page(document)
    assert "parameter gradient of 0, stage 1" in page
    assert "R, I and W are the parts" in page
    events = trace_document(document)["traceEvents"]
    assert {event["cat"] for event in events if event["ph"] == "X"} == {
        "forward", "reconstruct", "input_gradient", "parameter_gradient", "update",
    }  # fmt: skip
    assert {event["name"] for event in events if event["ph"] == "s"} == {"forward", "reconstruct", "input_gradient"}
    assert {"F0", "R0", "I0", "W0", "U0"} <= {event["name"] for event in events}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('["FRIW"]', "1 word for 4 stages"),
        ('["FRIW", "FRIW", "FRIW", "RFIW"]', "the last stage has depth 1"),
        ('["FRWI"]', 'got "FRWI"'),
        ('"yes"', 'got "yes"'),
        ("[]", "split_backward"),
    ],
)
def test_a_wrong_key_is_refused_where_it_stands(write, given, said):
    spec = write("wrong.toml", SPEC.replace("[method]\n", f"[method]\nsplit_backward = {given}\n"))
    with pytest.raises(SpecError) as caught:
        plan(spec, FOUR)
    (problem,) = caught.value.problems
    assert said in problem.message
    assert str(problem).startswith(f"{spec}:20:")


def test_words_that_would_wait_for_ever_are_refused(spec):
    words = ("method.schedule=[2, 2, 1, 1]", 'method.split_backward=["RIFW", "FRIW", "FRIW", "FRIW"]')
    with pytest.raises(SpecError, match=r"stage 2 .FRIW, depth 2. would wait for ever"):
        plan(spec, (*FOUR, *words))


@pytest.fixture
def each(write):
    return write("each.toml", SPEC.replace("accumulation = 3", "accumulation = 1"))


def advised(spec, *more):
    """The advice to split backwards, in the plan of a chain of eight stages on a device each."""
    eight = (*FOUR[:3], "graph.node.1.repeat=6", "partition.devices=8", *more)
    return [text for text in plan(spec, eight).document(with_timeline=False)["warnings"] if "split backwards" in text]


def test_a_late_plan_names_split_backwards_with_what_they_gain(each):
    """Of the same plan with that key: depth 5 in place of 8 (1f1b, and auto) or 15 (lockstep), and the first stage's buffers."""
    gains = "updates late, and with split backwards it would be 4, at the same speed, with 144.19 KiB instead of"
    on = "on the fullest device: set"
    assert advised(each, "method.schedule=auto") == [
        f"the first stage is 7 {gains} 180.19 KiB {on} method.split_backward = true"
    ]
    assert advised(each, "method.schedule=lockstep") == [
        f'the first stage is 14 {gains} 248.19 KiB {on} method.schedule = "auto" and method.split_backward = true'
    ]
    assert advised(each, "method.name=dsp", "method.schedule=1f1b")
    taken = plan(each, (*SPLIT, "graph.node.1.repeat=6", "partition.devices=8")).prediction
    assert (taken.programs[0].depth, max(held.total for held in taken.device_memory.values())) == (5, 147_648)


@pytest.mark.parametrize(
    "more",
    [
        ("method.schedule=[15, 13, 11, 9, 7, 5, 3, 1]",),
        ("method.schedule=1f1b", "method.split_backward=true"),
        ("method.schedule=auto", "method.last_stage=keep-graph"),
        ("method.schedule=auto", "method.accumulation=7"),
        ("method.name=pipedream", "method.schedule=lockstep"),
        ("method.name=gpipe", "method.schedule=fill-drain", "method.accumulation=4"),
        ("method.schedule=lockstep", "partition.stages=2", "partition.devices=2"),
    ],
    ids=["listed", "set", "refused", "hardly late", "stored", "flushes", "two stages"],
)
def test_split_backwards_are_not_named_where_they_gain_nothing_or_the_specification_has_decided(each, more):
    assert advised(each, *more) == []


def test_a_bound_decides_the_delay(write):
    """It chooses the accumulation, which would be another one for other depths."""
    bounded = write("bounded.toml", SPEC.replace("accumulation = 3", "max_staleness = 2.0"))
    assert advised(bounded, "method.schedule=auto") == []


def test_split_backwards_are_not_named_where_their_memory_is_not_there(each):
    more = ("method.schedule=auto", "partition.stages=4", "partition.devices=4")
    whole = plan(each, (*AUTO, "graph.node.1.repeat=6", "partition.stages=4")).prediction.device_memory
    assert advised(each, *more)
    limits = [f"{held.total}B" for held in whole.values()]
    assert advised(each, *more, f"partition.memory={limits}") == []
