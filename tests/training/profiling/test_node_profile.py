"""Profiles: what is timed, and what a plan makes of it. How long things take is not asserted."""

from __future__ import annotations

import json
import time

import pytest
import torch
from attrs import evolve

from petra_graph.compiler.profile_check import taken_under_load
from petra_graph.errors import SpecError
from petra_graph.planning.plan_spec import plan
from petra_graph.record.profile_files import read_profile, write_profile
from petra_graph.training.profiling.node_profile import _Stopwatch, profile
from tests.support.runs import SPEC


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    (folder / "small.toml").write_text(SPEC)
    return profile(str(folder / "small.toml"), ["method.schedule=1f1b"], 2)


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def test_every_operation_that_a_method_may_need(taken):
    assert set(taken.nodes) == {"stem", "rev.0", "rev.1", "head"}
    reversible = {"forward", "reverse", "recompute", "record", "replay", "invert", "copy", "update"}
    assert set(taken.nodes["rev.0"]) == reversible
    assert set(taken.nodes["stem"]) == {"forward", "recompute", "record", "replay", "copy", "update"}
    assert set(taken.nodes["head"]) == {"forward_backward", "update"}
    assert all(seconds >= 0 for node in taken.nodes.values() for seconds in node.values())
    assert (taken.micro_batch, taken.threads, taken.device_type) == (128, 1, "cpu")
    assert taken.settings["precision.compute"] == "float32"
    assert taken.settings["optimizer.name"] == "sgd"
    assert taken.link.latency_seconds < 64 * 2**20 / taken.link.bytes_per_second


def test_the_parts_of_split_backwards_are_shares_of_whole_ones(taken):
    assert set(taken.parts) == set(taken.nodes)
    own = {"reconstruct", "input_gradient", "parameter_gradient", "backward"}
    assert set(taken.parts["rev.0"]) == set(taken.parts["stem"]) == own
    assert set(taken.parts["head"]) == {"forward", *own}
    assert all(share > 0 for shares in taken.parts.values() for share in shares.values())


ALL = {"reconstruct": 0.25, "input_gradient": 0.4, "parameter_gradient": 0.375, "backward": 0.75}
"""R, I and W take 1.025 of a whole backward, R and B all of it."""
COSTLY = {**ALL, "input_gradient": 0.5}
ALL_COSTLY = {**COSTLY, "backward": 0.8}
OF_HEAD = {"forward": 0.25, "reconstruct": 0.0, "input_gradient": 0.25, "parameter_gradient": 0.5, "backward": 0.75}
SPLIT = ("method.schedule=1f1b", "method.split_backward=true", "partition.profile=p.json", "partition.devices=4")


def with_parts(taken, here, **parts):
    write_profile(
        here / "p.json", evolve(taken, parts={"stem": ALL, "rev.0": ALL, "rev.1": ALL, "head": OF_HEAD} | parts)
    )


def test_a_plan_takes_the_parts_from_the_profile(taken, spec, here):
    with_parts(taken, here, **{"rev.1": COSTLY})
    words = 'method.split_backward=["FRIW", "FRIW", "FRB", "FRIW"]'
    stages = plan(spec, [*SPLIT, words]).document(with_timeline=False)["stages"]
    whole = taken.nodes["rev.0"]["reverse"]
    seconds = stages[1]["seconds"]
    assert seconds["reconstruct"] == pytest.approx(0.25 * whole)
    assert seconds["input_gradient"] == pytest.approx(0.4 * whole)
    assert seconds["backward"] == pytest.approx(1.025 * whole)
    whole = taken.nodes["rev.1"]["reverse"]
    assert (stages[2]["seconds"]["reconstruct"], stages[2]["seconds"]["backward"]) == pytest.approx((whole / 4, whole))
    assert "input_gradient" not in stages[2]["seconds"]
    whole = taken.nodes["head"]["forward_backward"]
    assert (stages[3]["seconds"]["forward"], stages[3]["seconds"]["backward"]) == pytest.approx(
        (whole / 4, whole * 0.75)
    )


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, ["RIW", "RIW", "RIW", "RIW"]),
        ({"rev.0": COSTLY, "rev.1": ALL_COSTLY}, ["RIW", "RB", "B", "RIW"]),
        ({"head": {**OF_HEAD, "parameter_gradient": 0.6}}, ["RIW", "RIW", "RIW", "RB"]),
        ({"head": {**OF_HEAD, "parameter_gradient": 0.6, "backward": 0.79}}, ["RIW", "RIW", "RIW", "B"]),
    ],
    ids=["all", "one joins I and W, one all", "the head joins I and W", "the head joins all"],
)
def test_a_stage_keeps_parts_apart_as_long_as_they_cost_at_most_3_percent_more(taken, spec, here, parts, expected):
    with_parts(taken, here, **parts)
    found = plan(spec, [*SPLIT, "method.schedule=auto"])
    assert [word.replace("F", "") for word in found.prediction.placement.words] == expected


def test_parts_that_were_timed_at_less_than_the_whole_count_as_the_whole(taken, spec, here):
    """Bounds of the placement search rest on whole backwards."""
    with_parts(taken, here, **{"rev.0": {**ALL, "parameter_gradient": 0.1}})
    stage = plan(spec, SPLIT).document(with_timeline=False)["stages"][1]
    assert stage["seconds"]["backward"] == pytest.approx(taken.nodes["rev.0"]["reverse"])


def test_an_older_profile_without_parts_splits_as_a_data_sheet_does(taken, spec, here):
    write_profile(here / "p.json", taken)
    values = json.loads((here / "p.json").read_text())
    del values["parts"]
    (here / "p.json").write_text(json.dumps(values))
    stage = plan(spec, SPLIT).document(with_timeline=False)["stages"][1]
    assert stage["word"].replace("F", "") == "RIW"
    whole, forward = taken.nodes["rev.0"]["reverse"], taken.nodes["rev.0"]["forward"]
    assert (stage["seconds"]["reconstruct"], stage["seconds"]["backward"]) == pytest.approx(
        (min(forward, whole), whole)
    )


def test_processor_time_stands_beside_the_clock_s_and_a_plan_says_where_they_part(taken, spec, here):
    """84.8 ms were taken for a network that the processor needed 14.8 ms for, without a word."""
    assert 0 < taken.cpu_seconds <= taken.wall_seconds * 1.05
    assert taken.wall_seconds >= sum(taken.nodes["rev.0"][name] for name in ("forward", "reverse"))
    for cpu, said in ((0.99, 0), (0.2, 1)):
        write_profile(here / "p.json", evolve(taken, cpu_seconds=cpu * taken.wall_seconds))
        warnings = plan(spec, ["partition.profile=p.json"]).document(with_timeline=False)["warnings"]
        assert sum("other programs used it too" in text for text in warnings) == said
    assert taken_under_load(evolve(taken, cpu_seconds=None)) == ""


def test_an_older_profile_without_them_is_read(taken, here):
    write_profile(here / "p.json", taken)
    values = json.loads((here / "p.json").read_text())
    del values["wall_seconds"], values["cpu_seconds"]
    (here / "p.json").write_text(json.dumps(values))
    assert read_profile(here / "p.json").cpu_seconds is None


def test_waiting_is_no_time_of_the_processor():
    watch = _Stopwatch(torch.device("cpu"))
    with watch.update():
        time.sleep(0.02)
    assert watch.cpu_times["update"][0] < watch.times["update"][0] / 2


def test_it_is_read_as_it_was_written(taken, here):
    write_profile(here / "p.json", taken)
    assert read_profile(here / "p.json") == taken


def test_a_plan_adds_its_times_up(taken, spec, here):
    write_profile(here / "p.json", taken)
    document = plan(spec, ["partition.profile=p.json"]).document(with_timeline=False)
    stem, first, second, head = document["stages"]
    nodes = taken.nodes
    assert stem["seconds"]["forward"] == pytest.approx(nodes["stem"]["forward"] + taken.outside)
    assert stem["seconds"]["backward"] == pytest.approx(nodes["stem"]["recompute"])
    assert first["seconds"]["backward"] == pytest.approx(nodes["rev.0"]["reverse"])
    assert second["seconds"]["update"] == pytest.approx(nodes["rev.1"]["update"])
    assert head["seconds"] == pytest.approx(
        {"forward": nodes["head"]["forward_backward"], "backward": 0, "update": nodes["head"]["update"], "exchange": 0}
    )
    assert "times are measured in a profile" in document["assumptions"][0]


def test_what_was_not_timed_is_not_taken_for_nothing(taken, spec, here):
    write_profile(here / "p.json", taken)
    changed = json.loads((here / "p.json").read_text())
    del changed["nodes"]["rev.0"]["reverse"]
    (here / "p.json").write_text(json.dumps(changed))
    with pytest.raises(SpecError, match=r'has not timed reverse of node "rev\.0"'):
        plan(spec, ["partition.profile=p.json"])


def test_a_link_that_is_stated_counts(taken, spec, here):
    write_profile(here / "p.json", taken)
    two = ["partition.profile=p.json", "partition.stages=2", "partition.devices=2", "partition.device_type=cpu"]
    prediction = plan(spec, [*two, "partition.link_latency=0.5"]).prediction
    (link, *_) = prediction.pipeline.links.values()
    assert (link.latency_seconds, link.bytes_per_second) == (0.5, taken.link.bytes_per_second)


def test_a_profile_asks_for_none(spec):
    assert profile(spec, ["partition.profile=none.json", "partition.memory=1KiB"], 1).nodes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"micro_batch": 64}, "micro-batches of 64, not 128"),
        ({"settings": {"precision.compute": "bfloat16"}}, 'precision.compute = "bfloat16", not "float32"'),
        ({"settings": []}, "is not a profile"),
        ({"nodes": {}}, 'has no node "stem"'),
        ({"threads": 2}, "run.threads = 2, not 1"),
        ({"format": 1}, "p.json is a profile of format 1, and this petra-graph reads format 2"),
        ({"kind": "cuda"}, 'a device of kind "cuda", not "cpu"'),
        ({"sizes": {"stem": [1, 2]}}, 'node "stem" has other sizes'),
        ({"nodes": {"stem": {"repl+y": 1.0}}}, "is not a profile"),
        ({"outside": -1.0}, "is not a profile"),
        ({"outside": float("nan")}, "is not a profile"),
        ({"format": 7}, "p.json is a profile of format 7, and this petra-graph reads format 2"),
    ],
)
def test_a_profile_of_something_else(taken, spec, here, change, message):
    write_profile(here / "p.json", taken)
    changed = json.loads((here / "p.json").read_text()) | change
    (here / "p.json").write_text(json.dumps(changed))
    with pytest.raises(SpecError) as caught:
        plan(spec, ["partition.profile=p.json"])
    assert message in str(caught.value)
    assert str(caught.value).startswith("--set partition.profile=p.json: ")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.name=adam", 'the profile is of optimizer.name = "sgd", not "adam"'),
        ("optimizer.options.momentum=0", "the profile is of optimizer.options.momentum = 0.9, not 0"),
        ("optimizer.options.nesterov=false", "the profile is of optimizer.options.nesterov = true, not false"),
        ("optimizer.clip.limit=1.0", 'the profile is of optimizer.clip.by = none, not "norm"'),
        ("precision.buffer_dtype=bfloat16", 'precision.buffer_dtype = "as-streams", not "bfloat16"'),
        ("loss.name=mean-squared-error", 'loss.name = "cross-entropy", not "mean-squared-error"'),
        ("partition.device_type=h100", 'a device of kind "cpu", not "cuda"'),
    ],
)
def test_a_profile_of_other_settings_is_refused(taken, spec, here, override, message):
    """Adam's updates were predicted from SGD's seconds, and one GPU's from another's.

    Both values are named, with what to do.
    """
    write_profile(here / "p.json", taken)
    more = ["optimizer.options.nesterov=false"] if override.endswith("momentum=0") else []
    with pytest.raises(SpecError) as caught:
        plan(spec, ["partition.profile=p.json", override, *more])
    assert message in str(caught.value)
    assert "petra-graph profile SPEC" in str(caught.value)


@pytest.mark.parametrize("override", ["optimizer.options.lr=0.5", "optimizer.options.momentum=0.5", "method.name=dsp"])
def test_settings_that_change_no_seconds_are_accepted(taken, spec, here, override):
    write_profile(here / "p.json", taken)
    assert plan(spec, ["partition.profile=p.json", override]).prediction.timing.tick_seconds > 0


def test_a_profile_of_another_gpu_is_refused(taken, spec, here):
    """Seconds of an A100 were taken for those of an H100."""
    gpu = evolve(taken, kind="cuda", device="NVIDIA A100 80GB PCIe", device_type="a100-80gb")
    write_profile(here / "p.json", gpu)
    with pytest.raises(SpecError, match='a device of type "a100-80gb", not "h100"'):
        plan(spec, ["partition.profile=p.json", "partition.device_type=h100"])
    assert plan(spec, ["partition.profile=p.json", "partition.device_type=a100-80gb"])
