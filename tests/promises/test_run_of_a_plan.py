"""`run --plan`: a run has the placement of a saved plan, or is refused, and says beside the plan what its stages took."""

import json
from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.runs import only_run, summary_of, weights_bytes

SHORT = ("--set", "run.epochs=1", "--set", "run.micro_batches=4")


def saved(spec, *options, name="plan.json"):
    assert main(["plan", spec, *options, "--json", "--output", name]) == 0
    return json.loads(Path(name).read_text())


def test_a_run_has_the_stages_of_its_plan_and_compares_with_it(spec, capsys):
    three = (*SHORT, "--set", "partition.stages=3")
    plan = saved(spec, *three)
    plan["stages"][0]["seconds"]["forward"] = 77.0
    Path("plan.json").write_text(json.dumps(plan))
    assert main(["run", spec, *three, "--plan", "plan.json"]) == 0
    assert json.loads((only_run() / "plan.json").read_text())["stages"] == plan["stages"]
    compared = summary_of(only_run())["planned_and_measured"]
    assert [stage["stage"] for stage in compared["stages"]] == [1, 2, 3]
    assert compared["stages"][0]["seconds"]["forward"]["planned"] == 77.0
    assert 0 < compared["stages"][0]["seconds"]["forward"]["measured"] < 77
    (process,) = compared["processes"]
    assert process["stages"] == [1, 2, 3]
    assert process["bytes"]["planned"] == sum(stage["bytes"]["total"] for stage in plan["stages"])


def test_the_cut_is_the_plans_even_where_a_search_would_find_another(spec):
    """The plan is changed by hand to another cut of as many stages; its bits are those of this cut, listed."""
    plan = saved(spec, *SHORT, "--set", "partition.stages=2")
    nodes = ["stem", "rev.0", "rev.1", "head"]
    plan["stages"][0]["nodes"], plan["stages"][1]["nodes"] = nodes[:1], nodes[1:]
    Path("plan.json").write_text(json.dumps(plan))
    assert main(["run", spec, *SHORT, "--set", "partition.stages=2", "--plan", "plan.json"]) == 0
    listed = '[["stem"], ["rev.0", "rev.1", "head"]]'
    whole = ("--set", f"partition.stages={listed}", "--set", "run.directory=listed")
    assert main(["run", spec, *SHORT, *whole]) == 0
    assert 'stages = [\n    [\n        "stem",\n    ],' in (only_run() / "resolved.toml").read_text()
    assert weights_bytes(only_run()) == weights_bytes(only_run("listed"))


@pytest.mark.parametrize(
    ("planned", "own", "said"),
    [
        ((), ("--set", "data.batch=64"), "is a plan of data.batch = 128, not 64"),
        (("--set", "graph.node.rev.options.hidden=8"), (), 'is a plan of node "rev.0": parameters = '),
        (("--set", "partition.devices=2"), ("--set", "partition.devices=2"), "is a plan of devices = "),
    ],
)
def test_what_differs_is_refused_with_its_name(spec, capsys, planned, own, said):
    saved(spec, *planned)
    capsys.readouterr()
    assert main(["run", spec, *own, "--plan", "plan.json", "--dry-run"]) == 2
    text = capsys.readouterr().err
    assert f"plan.json {said}" in text
    assert "`petra-graph plan SPEC --json --output FILE`" in text
    assert not Path("runs").exists()
