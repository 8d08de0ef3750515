"""A plan from a specification alone: its document, its stages, what it says of its own numbers, the paper's table 3, and that a run is of it."""

from __future__ import annotations

import json
import re

import pytest
from attrs import evolve

from petra_graph.compiler.lower import Lowering, partition, per_block
from petra_graph.compiler.plan import read_plan
from petra_graph.errors import NoFeasiblePlan, SpecError
from petra_graph.measure import costs
from petra_graph.measure.costs import measure_costs
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.compare_plans import advised
from petra_graph.planning.plan_spec import CPU_RATIO, PROFILE_RATIO, Planner, paper_accounting
from petra_graph.program.device_types import OPERATION_SECONDS
from petra_graph.program.method import METHODS
from tests.support import ROOT
from tests.support.costs import conditions
from tests.support.pipelines import message_types
from tests.support.runs import SPEC


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


def planned(spec, *overrides, with_timeline=False):
    return Planner(spec, overrides).plan(with_timeline=with_timeline).as_json()


# --- the document -----------------------------------------------------------------------------------------------------


def test_a_plan_is_its_json_and_back(spec):
    plan = Planner(spec).plan(with_timeline=True)
    document = plan.as_json()
    assert list(document)[:4] == ["version", "name", "method", "schedule"]
    assert (document["name"], document["method"], document["schedule"]) == ("small", "petra", "1f1b")
    assert [stage["kind"] for stage in document["stages"]] == ["buffered", "reversible", "reversible", "head"]
    assert [stage["staleness"] for stage in document["stages"]] == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert document["paper_accounting"].keys() == {"model", "input_buffer", "parameter_buffer", "total"}
    assert read_plan(json.dumps(document), "it") == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (lambda plan: json.dumps(plan)[:-9], "p.json is no JSON: "),
        (lambda _: "[1]", "p.json is not a plan of version 2"),
        (lambda plan: json.dumps(plan | {"version": 9}), "p.json is not a plan of version 2"),
        (lambda plan: json.dumps({key: plan[key] for key in plan if key != "devices"}), "required field missing @ $.devices"),
        (lambda plan: json.dumps(plan | {"devices": []}), "p.json is damaged: its devices are not those of its stages"),
        (lambda plan: json.dumps(plan | {"devices": [], "stages": []}), "p.json is damaged"),
        (lambda plan: json.dumps(plan | {"stages": [plan["stages"][0] | {"depth": "two"}]}), "p.json is damaged: invalid value for type, expected int @ $.stages[0].depth"),
    ],
)  # fmt: skip
def test_a_damaged_plan_is_refused_by_its_name_and_place(spec, text, said):
    with pytest.raises(SpecError) as caught:
        read_plan(text(planned(spec)), "p.json")
    assert said in caught.value.problems[0].message


# --- stages, places, depths -------------------------------------------------------------------------------------------


REVNET = "specs/revnet18_cifar10.toml"
"""Of this checkout."""


@pytest.fixture(scope="module")
def revnet():
    big = "data.batch=1024"  # more work than the host's
    return Planner(
        str(ROOT / REVNET), ("partition.stages=2", "method.accumulation=1", "precision.fp32_precision=ieee", big)
    )


def placed(planner, **partition):
    """The last node of each stage but the last, the devices, and milliseconds of the tick."""
    spec = planner.spec
    document = planner.plan(evolve(spec, partition=evolve(spec.partition, **partition))).as_json()
    stages = document["stages"]
    return (
        [stage["nodes"][-1] for stage in stages[:-1]],
        [stage["device"] for stage in stages],
        1e3 * document["timing"]["tick_seconds"],
    )


def test_the_exchange_of_replicas_moves_the_cut(revnet):
    """Eight replicas on slow links exchange most gradients behind the cut."""
    found = placed(revnet, devices=2, device_type="h100", replicas=8, link_bandwidth=3e8)
    assert found == (
        ["layer4.0"], ["cuda:0", "cuda:1"], pytest.approx(276.0, abs=0.1),
    )  # fmt: skip


@pytest.mark.parametrize("stages", [2, "auto"])
def test_spare_devices_are_the_slow_ones(revnet, stages):
    """The first two of three devices were taken, whatever they are: 8.5 ms; the h100s alone are faster than with the t4."""
    _, devices, milliseconds = placed(revnet, stages=stages, devices=3, device_type=("t4", "h100", "h100"))
    assert (devices, milliseconds) == (["cuda:1", "cuda:2"], pytest.approx(77.75, abs=0.01))


# --- what it refuses --------------------------------------------------------------------------------------------------


def refusal(spec, memory):
    with pytest.raises(NoFeasiblePlan) as caught:
        advised(Planner(spec, (memory,)))
    (problem,) = caught.value.problems
    return problem


def test_too_little_memory_says_what_fits_and_each_of_it_does(spec):
    memory = f"partition.memory={max(device.bytes.total for device in Planner(spec).plan().devices) * 8 // 10}B"
    problem = refusal(spec, memory)
    assert str(problem.where) == f"--set {memory}"
    assert re.search(r"would hold .* more than the .* that it may hold", problem.message)
    found = problem.hint.removeprefix("what fits, by a plan each: ").split(", or ")
    assert any("data.batch" in one for one in found)
    assert any("partition.devices" in one for one in found)
    for one in found:
        Planner(spec, (memory, *one.replace(" = ", "=").split("; "))).plan()


def test_a_cut_that_only_starts_without_limits_lead_to_is_found():
    """RevNet50 was refused below 1,737 MiB: all cuts near those that begin within the limits hold more."""
    devices = ("partition.devices=4", "partition.device_type=cpu", "partition.stages=8", "partition.memory=1650MiB")
    found = Planner(str(ROOT / "specs" / "revnet50_cifar10.toml"), ("method.name=pipedream", *devices)).plan()
    assert max(device.bytes.total for device in found.devices) <= 1650 * 2**20


def test_where_nothing_fits_that_is_said(spec):
    assert re.match(r"none of \d+ changes that were planned fits", refusal(spec, "partition.memory=1KiB").hint)


# --- warnings ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def measurements(monkeypatch):
    """The networks whose costs are measured from now on."""
    calls = []
    real = costs.measure_costs
    monkeypatch.setattr(costs, "measure_costs", lambda *given: calls.append(given) or real(*given))
    return calls


def test_costs_are_measured_once_for_all_variants(spec, measurements):
    planner = Planner(spec)
    planner.plan()
    planner.plan()
    planner.plan(evolve(planner.spec, partition=evolve(planner.spec.partition, devices=2)))
    assert len(measurements) == 1


def throughputs():
    """The kept results of the benchmark's latest day: on a quiet machine, and on one that others loaded."""
    results = list((ROOT / "tools" / "bench" / "results").glob("throughput*.json"))
    latest = max(path.stem[-10:] for path in results)
    return [json.loads(path.read_text()) | {"file": path.name} for path in results if path.stem.endswith(latest)]


def test_the_factor_that_a_plan_states_is_the_one_that_was_found():
    """A plan by the data sheet now says how far such estimates hold; the benchmark's kept result must say the same."""
    rows = [row for result in throughputs() for row in result["rows"]]
    medians = [row["predicted by the data sheet / measured"]["median"] for row in rows]
    found = min(medians), max(medians)
    assert tuple(round(ratio, 1) for ratio in found) == CPU_RATIO


def test_so_is_that_of_a_profile():
    quiet = [row for result in throughputs() for row in result["rows"] if "loaded" not in result["file"]]
    medians = [row["predicted by a profile / measured"]["median"] for row in quiet]
    assert (round(min(medians), 1), round(max(medians), 1)) == PROFILE_RATIO


def test_a_launch_takes_on_a_cpu_what_was_measured():
    measured = [result["microseconds of an operation with no samples"] for result in throughputs()]
    least, largest = min(one["least"] for one in measured), max(one["largest"] for one in measured)
    assert least <= 1e6 * OPERATION_SECONDS["cpu"] <= largest


GIGABYTES = {"pipedream": 44.45, "dsp": 43.58, "delayed-reconstructed": 21.20, "petra": 20.33}


@pytest.fixture(scope="module")
def counted():
    checked = check_spec(str(ROOT / "specs" / "revnet50_imagenet.toml"))
    graph = checked.graph
    table = measure_costs(graph, conditions((3, 224, 224), batch=64, facts=checked.facts))
    messages = message_types({name: len(node.output_bytes) for name, node in table.nodes.items()})
    made = partition(graph, per_block(graph), ("cpu",))

    def count(method: str, k: int = 1):
        chosen = METHODS[method]
        lowering = Lowering(graph=graph, method=chosen, accumulation=k, messages=messages)
        programs = lowering.programs(made, "lockstep")
        return paper_accounting(programs, table)

    return count


def test_gigabytes(counted):
    assert {method: round(counted(method)["total"] / 1e9, 2) for method in GIGABYTES} == GIGABYTES
