"""A plan on terminals: six answers, the tables that are short or asked for, the warnings.

After a change of whole outputs that is meant: `python -m tests.report.test_plan_text`, then read the diff.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from petra_graph.errors import printable
from petra_graph.report.plan_text import answers, plan_text
from petra_graph.report.trace import trace
from tests.support import ROOT
from tests.support.plan_documents import as_plan, branches, hostile, three_stages

GIB = 2**30
FOLDER = ROOT / "tests" / "report" / "snapshots"
SNAPSHOTS = {
    "small_verbose_80.txt": lambda: plan_text(as_plan(three_stages()), width=80, verbose=True),
    "branches_120.txt": lambda: plan_text(as_plan(branches()), width=120),
}


def with_limits(document, *limits):
    devices = [device | {"memory_bytes": limit} for device, limit in zip(document["devices"], limits, strict=True)]
    return document | {"devices": devices}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_whole_outputs(name):
    assert SNAPSHOTS[name]() == (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ((2**20, GIB), "no; cpu:0 (cpu) needs 1.42 MiB more than its 1 MiB"),
        ((2**20, 1), "no; cpu:0 (cpu) needs 1.42 MiB more than its 1 MiB; 1 other device too"),
        ((None, GIB), "unknown; the memory of cpu is not stated: set partition.memory"),
    ],
)
def test_whether_it_fits(limits, said):
    assert dict(answers(as_plan(with_limits(three_stages(), *limits))))["fits"] == said


def test_what_to_change_is_the_first_warning():
    found = {
        many: as_plan(three_stages() | {"warnings": ["it is late: set a.b = 2", "and full"][:many]}) for many in (0, 2)
    }
    assert dict(answers(found[0]))["change"] == "nothing; plan --compare looks at other methods"
    assert dict(answers(found[2]))["change"] == "it is late: set a.b = 2"
    assert plan_text(found[2], width=80).count("it is late") == plan_text(found[2], width=80).count("! and full") == 1


def test_a_data_sheet_gives_a_range_and_a_profile_its_number():
    document = three_stages()
    document["timing"] |= {"samples_per_second": 20_000.0, "speedup": 1.17}
    document["run"] = {"epochs": 2, "seconds": 60.0, "epoch_seconds": 30.0, "micro_batches_per_epoch": 4}
    document["certainty"] = {
        "samples_per_second_low": 10_000.0,
        "samples_per_second_high": 50_000.0,
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
@pytest.mark.parametrize("plan", [three_stages, branches, hostile])
def test_nothing_is_wider_than_the_terminal_nor_controls_it(plan, width):
    for more in ({}, {"verbose": True}):
        lines = plan_text(as_plan(plan()), width=width, **more).splitlines()
        assert max(map(len, lines)) <= width
        assert printable("".join(lines)) == "".join(lines)


TRACED = {
    "M": {"name", "ph", "pid", "tid", "args"},
    "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"},
}


@pytest.mark.parametrize("plan", [three_stages, branches, hostile])
def test_a_trace_has_the_formats_keys_and_the_blocks_of_the_timeline(plan):
    document = plan()
    events = json.loads(trace(as_plan(document)))["traceEvents"]
    assert all(set(event) == TRACED[event["ph"]] and isinstance(event["pid"], int) for event in events)
    blocks = [event["ts"] / 1e6 for event in events if event["ph"] == "X"]
    assert blocks == pytest.approx([one["start"] for one in document["timeline"]])
    names = Counter(event["name"] for event in events if event["ph"] == "M")
    assert (names["process_name"], names["thread_name"]) == (len(document["devices"]), len(document["stages"]))


if __name__ == "__main__":
    for one, write in SNAPSHOTS.items():
        (FOLDER / one).write_text(write(), encoding="utf-8")
