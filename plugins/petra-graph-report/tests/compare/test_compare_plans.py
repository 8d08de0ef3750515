"""Tables of several plans: methods side by side, and speed by the number of devices."""

from __future__ import annotations

from functools import cache

import pytest
from petra_graph_report.compare.compare_plans import compare
from petra_graph_report.compare.plan_table import PlanTable
from petra_graph_report.compare.scale_plans import device_counts, scale

from petra_graph.compiler.planner_inputs import all_reduce_seconds
from petra_graph.compiler.simulator import steady_state
from petra_graph.errors import SpecError
from petra_graph.planning.plan_spec import Planner, plan
from petra_graph.program.device_types import Link
from petra_graph.program.method import METHODS
from petra_graph.report.plan.plan_on_terminal import plan_text
from tests.support.runs import SPEC

FOUR = ("partition.devices=4", "partition.device_type=cpu")


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@cache
def _rows(overrides):
    rows = compare(Planner("small.toml", overrides))["rows"]
    return {(row["method"], row["schedule"]): row for row in rows if not row["keep"] and row["replicas"] == 1}


def rows_of(spec, *overrides):
    """Compare once under the same overrides: `spec` is the same text in all tests."""
    return _rows(overrides)


def test_every_method_under_each_of_its_schedules(spec):
    rows = rows_of(spec, *FOUR)
    assert {method for method, _ in rows} == set(METHODS)
    assert ("petra", "auto") in rows
    assert ("petra", "sequential") not in rows
    assert rows["reversible-backprop", "sequential"]["speedup"] < 1, "it waits for links, and one device alone does not"
    assert rows["pipedream", "lockstep"]["saving"] == 0
    assert 0 < rows["petra", "lockstep"]["saving"] < rows["petra", "1f1b"]["saving"] < 1


def test_a_method_that_needs_more_than_the_card_has_is_said_not_to_fit(spec):
    """`gpipe` with 24.86 GiB stood among the methods that fit a card of 24."""
    known = rows_of(spec, *FOUR).values()
    assert {row["fits"] for row in known} == {None}, "the memory of cpu is not known"
    between = sum(row["memory_peak"] for row in known) // len(known)
    card = f'partition.device.card={{kind="cpu", memory="{between} B", flops={{float32=1e12}}, memory_bandwidth=1e11}}'
    on_cards = (card, "partition.devices=4", "partition.device_type=card")
    rows = rows_of(spec, *on_cards)
    assert {row["fits"] for row in rows.values()} == {True, False}
    assert all(row["memory_peak"] <= between if row["fits"] else "would hold" in row["note"] for row in rows.values())


def test_links_that_cost_nothing_leave_the_same_speed_as_one_device(spec):
    rows = rows_of(spec, *FOUR, "partition.link_latency=0", "partition.link_bandwidth=1e30")
    assert 1 <= rows["reversible-backprop", "sequential"]["speedup"] < 1.3, "updates alone run beside other stages"


def test_what_theory_says(spec):
    rows = rows_of(spec, *FOUR, "method.accumulation=1")
    petra, delayed = rows["petra", "lockstep"], rows["delayed-reconstructed", "lockstep"]
    assert petra["memory_total"] < delayed["memory_total"] < rows["pipedream", "lockstep"]["memory_total"]
    whole = rows["pipedream", "lockstep"]["paper_total"]
    assert petra["paper_saving"] == pytest.approx(1 - petra["paper_total"] / whole)
    assert petra["flops"] == rows["dsp", "lockstep"]["flops"] < delayed["flops"]
    assert rows["backprop", "sequential"]["flops"] < petra["flops"]
    assert petra["channel_bytes"] > rows["dsp", "lockstep"]["channel_bytes"], (
        "an activation comes back with each gradient"
    )
    assert petra["staleness"] == 2 * rows["petra", "1f1b"]["staleness"] == 6


def test_a_method_that_does_not_fit_is_a_row_with_a_note(spec):
    rows = rows_of(spec, *FOUR)
    limit = max(rows["petra", "1f1b"]["memory_peak"], rows["petra", "auto"]["memory_peak"])
    limited = rows_of(spec, *FOUR, f"partition.memory={limit}B")
    assert limited["petra", "1f1b"]["memory_peak"] <= limit
    refused = limited["pipedream", "lockstep"]
    assert refused["memory_total"] is None
    assert refused["note"]


def test_no_number_of_devices_fits(spec):
    """It ended in a traceback; `tests/cli/test_plan.py` has a comparison in which no method fits."""
    alone = scale(Planner(spec, ("partition.device_type=cpu", "partition.memory=1KiB")), [2, 4])
    assert {row["samples_per_second"] for row in alone["rows"]} == {None}


def test_a_method_that_a_run_would_refuse_is_a_row_with_the_reason(spec):
    """Prediction was planned under methods whose backwards use the forward's parameters, as if it could run."""
    rows = rows_of(spec, *FOUR, "optimizer.delay.predict=true")
    for name, schedule in (("pipedream", "lockstep"), ("pipedream", "1f1b"), ("delayed-reconstructed", "auto")):
        row = rows[name, schedule]
        assert row["memory_total"] is row["speedup"] is row["saving"] is None
        assert row["note"] == (
            'a run would be refused: optimizer "sgd" predicts the parameters that a backward will find, and under method '
            f'"{name}" the backward of stage 1 uses those of its forward'
        )
    assert rows["petra", "1f1b"]["memory_total"] is not None
    assert rows["petra", "1f1b"]["saving"] is None, "it is of pipedream"


def test_a_specification_that_says_what_nodes_keep_has_a_row_of_its_own(spec):
    """Nodes then keep what is fastest within the limit; the other rows are the methods as they are."""
    gpipe = [*FOUR, "method.name=gpipe", "method.schedule=fill-drain"]
    limit = max(held.total for held in plan(spec, gpipe).prediction.device_memory.values()) - 1
    rows = compare(Planner(spec, (*gpipe, f"partition.memory={limit}B", "method.keep=auto")))["rows"]
    *others, own, flushed = (row for row in rows if row["replicas"] == 1)
    assert not any(row["keep"] for row in others)
    assert (flushed["method"], flushed["keep"]) == ("1f1b-flush", "auto"), (
        "the synchronous pipeline that fits most often"
    )
    assert (own["method"], own["keep"]) == ("gpipe", "auto")
    assert next(row["memory_peak"] for row in others if row["method"] == "gpipe") is None
    assert own["memory_peak"] <= limit
    assert own["paper_total"] is None, "the paper has no such method"


def test_what_every_method_refuses_is_wrong(spec):
    with pytest.raises(SpecError, match="5 stages"):
        compare(Planner(spec, (*FOUR, "partition.stages=5")))


def test_a_number_of_devices_that_makes_gradients_too_late_is_a_row_with_the_reason(spec):
    late = ["optimizer.delay.correction=error-feedback", "method.accumulation=1", "partition.device_type=a100-40gb"]
    rows = scale(Planner(spec, late), [1, 2, 4])["rows"]
    assert [row["samples_per_second"] is None for row in rows] == [False, False, True]
    assert "is for delays of at most 1 update" in rows[2]["note"]


def test_a_norm_over_all_stages_is_taken_by_stage_where_methods_are_compared(spec):
    compare(Planner(spec, [*FOUR, "optimizer.clip.limit=1.0", "optimizer.clip.scope=global", "method.name=backprop", "method.schedule=sequential"]))  # fmt: skip


def test_replicas_have_the_speed_up_that_their_own_plan_says(spec):
    kind = "partition.device_type=a100-40gb"
    rows = compare(Planner(spec, ("partition.devices=4", kind, "method.accumulation=8")))["rows"]
    row = next(one for one in rows if one["replicas"] == 4)
    again = plan(spec, [kind, "method.accumulation=8", *row["set"]]).prediction
    assert again.speedup == pytest.approx(row["speedup"], rel=1e-3)


def test_a_comparison_has_replicas_whose_speed_is_over_the_same_device(spec):
    settings = ("partition.devices=4", "partition.device_type=h100", "method.accumulation=4")
    found = compare(Planner(spec, settings))
    first, rows = found["rows"][0], found["rows"]
    assert {(row["replicas"], row["method"]) for row in rows if row["replicas"] > 1} == {
        (2, "1f1b-flush"), (2, "petra"), (4, "backprop"), (4, "reversible-backprop"),
    }  # fmt: skip
    alone = first["samples_per_second"] / first["speedup"]
    for row in rows:
        assert row["samples_per_second"] / row["speedup"] == pytest.approx(alone)
    whole = next(row for row in rows if row["replicas"] == 4)
    assert whole["flops"] == first["flops"], "of as many samples"
    assert whole["memory_total"] == pytest.approx(4 * whole["memory_peak"], abs=4)
    assert rows[found["recommended"]]["unbeaten"]


def test_scale(spec):
    rows = scale(Planner(spec, ["partition.device_type=a100-40gb"]), [1, 2, 4, 8])["rows"]
    assert [row["stages"] for row in rows] == [1, 2, 4, 4]
    assert [row["replicas"] for row in rows] == [1, 1, 1, 2]
    assert rows[0]["speedup"] == rows[0]["efficiency"] == 1
    assert rows[3]["samples_per_second"] < 2 * rows[2]["samples_per_second"], "replicas wait for their all-reduce"
    assert rows[0]["bytes_per_link"] == 0 < rows[1]["bytes_per_link"]


def test_tables_of_plans_say_what_they_assume(spec):
    """`--compare` and `--scale` printed figures without a word on where they come from.

    1,024 GPUs were on the link of one machine: 300 GB/s where a network is.
    """
    planner = Planner(spec, ["partition.device_type=a100-40gb"])
    for table in (compare(planner), scale(planner, [1, 8])):
        said = " ".join(table["assumptions"])
        assert "data sheet of a100-40gb" in said
        assert "on an H100" in said
        assert table["speedup_over"].startswith("one device ")
        assert "between machines" not in said
    many = scale(planner, [1, 8, 1024])
    assert sum("between machines: 20 µs a message and 12.5 GB/s" in text for text in many["assumptions"]) == 1
    assert "between machines" in PlanTable(many).text(100, verbose=True)
    stated = scale(Planner(spec, ["partition.device_type=a100-40gb", "partition.link_bandwidth=3e11", "partition.link_latency=1e-5"]), [1024])  # fmt: skip
    assert many["rows"][2]["samples_per_second"] < stated["rows"][0]["samples_per_second"]


def test_speed_ups_are_over_one_device_whatever_counts_are_listed(spec):
    """`--scale 4,8` called 4 devices 1.00 times as fast as one."""
    settings = ["partition.device_type=a100-40gb", "data.batch=2", "method.accumulation=1"]  # memory is of parameters
    planner = Planner(spec, settings)
    (listed,) = scale(planner, [4])["rows"]
    alone, four = scale(planner, [1, 4])["rows"]
    assert listed["speedup"] == four["speedup"] > 1
    limit = (alone["memory_peak"] + four["memory_peak"]) // 2
    rows = scale(Planner(spec, [*settings, f"partition.memory={limit}B"]), [1, 4])["rows"]
    assert [row["speedup"] is None for row in rows] == [True, False]


def test_a_steady_state_that_was_not_reached_is_said(spec, monkeypatch):
    """A tick that is a mean over a simulation in which no state recurred was printed like an exact one."""
    monkeypatch.setattr(steady_state.Simulation, "state", lambda _, micro_batch: micro_batch)
    monkeypatch.setattr(steady_state, "_OPERATIONS", 600)
    shared = ["partition.devices=2", "partition.device_type=cpu"]
    planner = Planner(spec, shared)
    plan = planner.plan()
    assert not plan.prediction.timing.exact
    document = plan.document(with_timeline=False)
    assert any("the tick is not exact" in text for text in document["assumptions"])
    assert "about" in plan_text(document, width=120)
    noted = {row["method"]: row["note"] for row in compare(planner)["rows"] if not row["exact"]}
    assert "petra" in noted
    assert all("no period was found" in note for note in noted.values())


def test_pipelines_that_flush_are_not_stale(spec):
    settings = ["method.name=gpipe", "method.schedule=fill-drain", "method.accumulation=4"]
    assert {row["staleness"] for row in scale(Planner(spec, settings), [1, 2, 4])["rows"]} == {0}


def test_devices_that_replicas_cannot_share_are_left_over(spec):
    (row,) = scale(Planner(spec), [9])["rows"]
    assert (row["stages"], row["replicas"], row["note"]) == (3, 3, "")
    (row,) = scale(Planner(spec), [7])["rows"]
    assert (row["stages"], row["replicas"], row["note"]) == (3, 2, "1 device is left over")


def test_an_all_reduce():
    link = Link(latency_seconds=1.0, bytes_per_second=10)
    assert all_reduce_seconds(link, 100, 1) == 0
    assert all_reduce_seconds(link, 100, 2) == 2 * (1 + 5)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1", [1]),
        ("1, 2,8", [1, 2, 8]),
        ("1,2,4,...,64", [1, 2, 4, 8, 16, 32, 64]),
        ("1,2,...,16", [1, 2, 4, 8, 16]),
        ("2,4,6,...,12", [2, 4, 6, 8, 10, 12]),
        ("10,20,30,...,55", [10, 20, 30, 40, 50, 55]),
        ("1,3,9,…,100", [1, 3, 9, 27, 81, 100]),
    ],
)
def test_counts(text, counts):
    assert device_counts(text) == counts


@pytest.mark.parametrize("text", ["", "a", "0,1", "2,1", "1,1", "...,4", "4,...", "1,...,8", "1,2,..."])
def test_counts_that_are_none(text):
    with pytest.raises(SpecError, match="growing numbers"):
        device_counts(text)
