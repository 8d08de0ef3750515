"""Plans of split backwards: the key, the words and depths that a plan finds, and what its views show."""

from __future__ import annotations

import json

import pytest

from petra_graph.errors import SpecError
from petra_graph.planning.plan_spec import plan
from petra_graph.program.plan_document import read_document
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
