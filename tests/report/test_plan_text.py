"""A plan on terminals: six answers, the tables that are short or asked for, the warnings."""

from __future__ import annotations

import pytest

from petra_graph.compiler.plan import ComparedPlan, Comparison
from petra_graph.errors import printable
from petra_graph.report.plan_tables import ticks_once_full
from petra_graph.report.plan_text import answers, plan_text
from tests.support.plan_documents import as_plan, branches, hostile, revnet50, three_stages
from tests.support.plan_snapshots import FOLDER, SNAPSHOTS

GIB = 2**30


def with_limits(document, *limits):
    devices = [device | {"memory_bytes": limit} for device, limit in zip(document["devices"], limits, strict=True)]
    return document | {"devices": devices}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_whole_outputs(name):
    assert SNAPSHOTS[name]() == (FOLDER / name).read_text(encoding="utf-8")


def test_a_device_that_is_too_small():
    document = with_limits(three_stages(), 100 * 2**20, GIB)
    assert dict(answers(as_plan(document)))["fits"] == "no; cpu:0 (cpu) needs 115 MiB more than its 100 MiB"
    both = with_limits(three_stages(), 100 * 2**20, 2**20)
    assert dict(answers(as_plan(both)))["fits"].endswith("than its 100 MiB; 1 other device too")


def test_a_device_whose_memory_is_not_known():
    document = with_limits(three_stages(), None, GIB)
    assert dict(answers(as_plan(document)))["fits"] == "unknown; the memory of cpu is not stated: set partition.memory"
    known = document | {"devices": [device | {"capacity_bytes": GIB} for device in document["devices"]]}
    assert dict(answers(as_plan(known)))["fits"].startswith("yes; 809 MiB (79 %)")


@pytest.mark.parametrize(
    ("said", "warnings"),
    [
        ("nothing; plan --compare looks at other methods", []),
        ("set run.epochs = 2; warning 2 of 2 says why", ["it is alone", "short: set run.epochs = 2"]),
        ("partition.stages = 4 cuts by cost; the warning says why", ["wait: partition.stages = 4 cuts by cost"]),
        (
            'set optimizer.name = "muon"; the warning says why',
            ['late: set optimizer.name = "muon". Less: method.a = 1'],
        ),
    ],
)
def test_what_to_change_is_what_a_warning_says_to_set(said, warnings):
    assert dict(answers(as_plan(three_stages() | {"warnings": warnings})))["change"] == said


def test_a_data_sheet_gives_a_range_and_a_profile_its_number():
    document = three_stages()
    document["timing"]["samples_per_second"] = 20_000.0
    document["run"] = {"epochs": 2, "seconds": 60.0, "epoch_seconds": 30.0, "micro_batches_per_epoch": 4}
    document["certainty"] = {
        "samples_per_second_low": 10_000.0,
        "samples_per_second_high": 50_000.0,
        "spare_bytes": None,
        "times": "estimates from the data sheet of cpu",
    }
    found = dict(answers(as_plan(document)))
    assert found["speed"].startswith(
        "10,000 to 50,000 samples/s; 1.17 x plain backpropagation on one cpu; 24 s to 2 min"
    )
    assert found["how sure"].endswith("; such plans gave 0.4 to 2.0 times the speed that runs had")
    document["certainty"] |= {"times": "measured in a profile of a CPU", "profiled": True}
    found = dict(answers(as_plan(document)))
    assert found["speed"] == "20,000 samples/s; 1.17 x plain backpropagation on one cpu; 60 s for 2 epochs"
    assert found["how sure"].startswith("measured in a profile of a CPU; such plans gave")
    document["timing"]["exact"] = False
    assert "; about 1.17 x" in dict(answers(as_plan(document)))["speed"]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("plan", [three_stages, branches, revnet50, hostile])
def test_nothing_is_wider_than_the_terminal_nor_controls_it(plan, width):
    for more in ({}, {"verbose": True}):
        lines = plan_text(as_plan(plan()), width=width, **more).splitlines()
        assert max(map(len, lines)) <= width
        assert printable("".join(lines)) == "".join(lines)


def test_what_nodes_keep_is_said_if_those_of_a_kind_differ():
    found, usual = branches(), {"reversible": "nothing", "buffered": "input", "head": None}
    own = {"left.0": "input", "left.1": "input", "body.1": "graph"}
    nodes = [{**node, "keeps": own.get(node["name"], usual[node["kind"]])} for node in found["nodes"]]
    text = plan_text(as_plan({**found, "nodes": nodes}), width=120)
    assert "nodes keep input: stem, left.0-1, join, merge; nothing: left.2, right.0, body.0; graph: body.1" in text
    nodes = [{**node, "keeps": usual[node["kind"]]} for node in found["nodes"]]
    assert "nodes keep" not in plan_text(as_plan({**found, "nodes": nodes}), width=120)


def test_the_best_that_fits_has_a_star():
    figures = {"a": (2**20, 10.0, True), "b": (2**21, 20.0, True), "c": (2**20, 99.0, False)}
    rows = [
        ComparedPlan(name=name, memory_peak=held, samples_per_second=rate, fits=fits)
        for name, (held, rate, fits) in figures.items()
    ]
    compared = Comparison(name="x", rows=tuple(rows), speedup_over="y", assumptions=())
    a, b, c = (line for line in plan_text(compared, width=80).splitlines() if line[:2] in {"a ", "b ", "c "})
    assert ("1 MiB *" in a, a.count("*")) == (True, 1)
    assert ("20 *" in b, b.count("*")) == (True, 1)
    assert "*" not in c


def test_the_pipeline_is_full_when_every_stage_has_begun_its_first_backward():
    plan = as_plan(three_stages())
    start = max(
        min(block.start for block in plan.timeline if (block.stage, block.verb) == (stage, "backward"))
        for stage in (1, 2, 3)
    )
    blocks = ticks_once_full(plan, 2)
    assert min(block.end for block in blocks) > start
    assert max(block.start for block in blocks) < start + 2 * plan.timing.tick_seconds
