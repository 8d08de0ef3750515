"""The six answers with which a plan begins."""

from __future__ import annotations

import pytest

from petra_graph.report.plan.plan_answers import answers, fullest_device
from petra_graph.report.plan.plan_on_terminal import plan_text
from tests.support.plan_documents import branches, hostile, revnet50, three_stages

GIB = 2**30
QUESTIONS = ["fits", "fullest", "speed", "staleness", "change", "how sure"]


def answered(document):
    return {answer.question: str(answer) for answer in answers(document)}


def with_limits(document, *limits):
    devices = [device | {"memory_bytes": limit} for device, limit in zip(document["devices"], limits, strict=True)]
    return document | {"devices": devices}


def test_a_plan_of_two_devices():
    assert answered(three_stages()) == {
        "fits": "yes; 297 MiB (58 %) to spare on the fullest device",
        "fullest": "215 MiB of 512 MiB; cpu:0 (cpu) with stages 1-2",
        "speed": "1.17 x one device with reversible-backprop; 26,256 samples/s",
        "staleness": "2 updates; the gradients of stage 1, the latest",
        "change": "set partition.stages = 2; the warning says why",
        "how sure": "estimates from the data sheet of cpu",
    }


@pytest.mark.parametrize("plan", [three_stages, branches, revnet50, hostile])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_they_are_the_first_lines_of_any_plan_after_its_name_and_lose_no_word(plan, width):
    first = plan_text(plan(), width=width).partition("\n\n")[0].splitlines()[1:]
    assert [word for line in first if (word := line[:11].strip())] == QUESTIONS
    assert max(map(len, first)) <= width
    said = " ".join(line[11:] for line in first).split()
    assert said == " ".join(map(str, answers(plan(), "assumptions: --verbose"))).split()


def test_a_device_that_is_too_small():
    document = with_limits(three_stages(), 100 * 2**20, GIB)
    assert answered(document)["fits"] == "no; cpu:0 (cpu) needs 115 MiB more than its 100 MiB"
    both = with_limits(three_stages(), 100 * 2**20, 2**20)
    assert answered(both)["fits"].endswith("than its 100 MiB; 1 other device too")


def test_a_device_whose_memory_is_not_known():
    document = with_limits(three_stages(), None, GIB)
    assert answered(document)["fits"] == "unknown; the memory of cpu is not stated: set partition.memory"
    assert answered(document)["fullest"].startswith("215 MiB; cpu:0")
    known = document | {"devices": [device | {"capacity_bytes": GIB} for device in document["devices"]]}
    assert answered(known)["fits"].startswith("yes; 809 MiB (79 %)")


def test_the_fullest_of_unlike_devices_is_so_by_its_share():
    document = with_limits(three_stages(), 80 * GIB, 50 * 2**20)
    assert fullest_device(document)["name"] == "cpu:1"
    assert fullest_device(with_limits(document, 80 * GIB, None))["name"] == "cpu:0", "shares are not known of all"


def test_a_tick_that_is_not_exact_is_said_to_be_about_so():
    document = three_stages()
    document["timing"]["exact"] = False
    assert answered(document)["speed"].startswith("about 1.17 x")


def test_gradients_that_are_not_late():
    document = three_stages()
    stages = [stage | {"staleness": 0.0} for stage in document["stages"]]
    assert answered(document | {"stages": stages})["staleness"] == "none; no gradient is late"


def test_an_optimizer_that_knows_the_delay():
    assert "known to muon" in answered(three_stages() | {"delay_aware": ["muon"]})["staleness"]


@pytest.mark.parametrize(
    ("said", "warnings"),
    [
        ("nothing; the plan has no warnings; plan --compare looks at other methods", []),
        (
            "set run.epochs = 2; warning 2 of 2 says why",
            ["a key changes nothing: it is alone", "short: set run.epochs = 2"],
        ),
        ('set method.schedule = "auto"; the warning says why', ['stale; 1 would do: set method.schedule = "auto"']),
        (
            "partition.stages = 4 cuts by cost; the warning says why",
            ["devices wait: partition.stages = 4 cuts by cost"],
        ),
        (
            'set optimizer.name = "muon"; the warning says why',
            ['late: at 1.70 (a page): set optimizer.name = "muon". Less delay: method.a = 1'],
        ),
        ("a key changes nothing: it is alone; the warning says why", ["a key changes nothing: it is alone"]),
    ],
)
def test_what_to_change_is_what_a_warning_says_to_set(said, warnings):
    assert answered(three_stages() | {"warnings": warnings})["change"] == said


def test_a_data_sheet_gives_a_range_and_a_profile_its_number():
    document, expected = three_stages(), {"samples_per_second_low": 10_000.0, "samples_per_second_high": 50_000.0}
    document["timing"]["samples_per_second"] = 20_000.0
    document["run"] = {"epochs": 2, "seconds": 60.0, "steps": 4}
    found = answered(document | {"certainty": expected})
    assert found["speed"].endswith("; 10,000 to 50,000 samples/s; 24 s to 2 min 0 s for 2 epochs")
    assert found["how sure"].endswith("; such plans gave 0.4 to 2.0 times the speed that runs had")
    found = answered(document | {"certainty": expected | {"tick_low_seconds": 1.0, "tick_high_seconds": 2.0}})
    assert found["speed"].endswith("; 20,000 samples/s; 60 s for 2 epochs")
    assert found["how sure"].endswith("; such plans gave 0.4 to 2.0 times the speed that runs had on a quiet machine")


def test_where_the_times_are_from():
    measured = "times are measured in a profile of a CPU, 1 thread: the median of each operation"
    assert (
        answered(three_stages() | {"assumptions": ["links: free", measured]})["how sure"]
        == "measured in a profile of a CPU"
    )
    assert answered(three_stages() | {"assumptions": []})["how sure"] == "unknown"
