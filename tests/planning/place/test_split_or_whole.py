"""Under memory limits, `auto` takes whole backwards where split ones fit in no cut or only in a slower one."""

from __future__ import annotations

import pytest

from petra_graph.cli.main import main
from petra_graph.errors import NoFeasiblePlan
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.planning.machine.spec_devices import planned_devices
from petra_graph.planning.network.measure_network import measure
from petra_graph.planning.place.place_network import place_on_processes
from petra_graph.planning.plan_spec import plan
from petra_graph.spec.load_spec import dump
from petra_graph.training.prepared_run import prepare
from petra_graph.training.record.resolved_spec import resolved
from tests.support.runs import SPEC

CHAIN = SPEC.replace("repeat = 2", "repeat = 7")
"""Nine nodes; of the fastest cut, three in each of three stages, the first one holds least with whole backwards, by the tests' first lines."""
THREE = (
    "partition.stages=3", "partition.devices=3", "partition.device_type=cpu", "partition.link_latency=0",
    "method.accumulation=1", "method.schedule=auto",
)  # fmt: skip
SPLIT = "method.split_backward=true"


@pytest.fixture
def chain(write):
    return write("chain.toml", CHAIN)


def limit(count):
    return f"partition.memory={count}B"


def fullest(found):
    return max(held.total for held in found.prediction.device_memory.values())


def assumptions(found):
    return found.document(with_timeline=False, with_warnings=False)["assumptions"]


def test_enough_memory_leaves_backwards_split(chain):
    split = plan(chain, (*THREE, SPLIT))
    found = plan(chain, (*THREE, SPLIT, limit(fullest(split))))
    assert found.prediction.programs == split.prediction.programs
    assert found.prediction.placement.words is not None
    assert found.prediction.placement.notes == ()


def test_whole_backwards_where_split_ones_fit_in_a_slower_cut_only(chain):
    whole = plan(chain, THREE)
    found = plan(chain, (*THREE, SPLIT, limit(fullest(whole))))
    assert found.prediction.programs == whole.prediction.programs
    assert found.prediction.timing.tick_seconds == whole.prediction.timing.tick_seconds
    (note,) = found.prediction.placement.notes
    assert note in assumptions(found)
    assert note == (
        "backwards are whole, although method.split_backward = true: split, the best cut found that keeps the memory limits takes "
        "1.15 ms a micro-batch; whole, 964 µs"
    )


def test_whole_backwards_where_split_ones_fit_in_no_cut(chain):
    alone = plan(chain, (*THREE, limit(130_000)))
    found = plan(chain, (*THREE, SPLIT, limit(130_000)))
    assert found.prediction.programs == alone.prediction.programs
    (note,) = found.prediction.placement.notes
    assert note == (
        "backwards are whole, although method.split_backward = true: split, these stages would hold 183.75 KiB on cpu:1, which may hold "
        "126.95 KiB; whole, they hold 80.02 KiB there"
    )


def test_given_stages_are_judged_in_the_same_way(chain):
    each = [["stem", "rev.0", "rev.1"], ["rev.2", "rev.3", "rev.4"], ["rev.5", "rev.6", "head"]]
    listed = (*THREE, f"partition.stages={each}".replace("'", '"'))
    whole = plan(chain, listed)
    found = plan(chain, (*listed, SPLIT, limit(fullest(whole))))
    assert found.prediction.programs == whole.prediction.programs
    assert "these stages would hold" in found.prediction.placement.notes[0]


def test_where_neither_fits_the_refusal_is_that_of_split_backwards(chain, monkeypatch):
    monkeypatch.setattr("petra_graph.planning.place.place_network.working_remedies", lambda *_, **__: "")
    with pytest.raises(NoFeasiblePlan, match=r"device \"cpu:0\" would hold 152\.62 KiB and may hold 19\.53 KiB"):
        plan(chain, (*THREE, SPLIT, limit(20_000)))


def test_split_backwards_stay_where_only_they_fit(write):
    """Less depth takes fewer buffers, which may be more than the graphs."""
    spec = write("small.toml", SPEC)
    four = (*THREE, "partition.stages=4", "partition.devices=4")
    assert fullest(plan(spec, (*four, SPLIT))) < fullest(plan(spec, four))
    found = plan(spec, (*four, SPLIT, limit(fullest(plan(spec, (*four, SPLIT))))))
    assert found.prediction.placement.words is not None
    assert found.prediction.placement.notes == ()


def test_a_schedule_that_is_named_keeps_its_split_backwards(chain):
    """It is refused, and whole backwards are among the remedies."""
    each = [["stem"], [f"rev.{n}" for n in range(4)], [*(f"rev.{n}" for n in range(4, 7)), "head"]]
    named = (*THREE, f"partition.stages={each}".replace("'", '"'), "method.schedule=1f1b", limit(150_000))
    assert fullest(plan(chain, named)) <= 150_000
    with pytest.raises(NoFeasiblePlan, match=r"it fits with .*method\.split_backward = false"):
        plan(chain, (*named, SPLIT))


def test_a_run_says_so_and_its_resolved_specification_repeats_it(write, chain, capsys):
    given = (*THREE, SPLIT, limit(130_000))
    prepared = prepare(chain, given, processes=3)
    assert {program.word for program in prepared.programs} == {"FB"}
    spec = resolved(prepared)
    assert spec.method.split_backward is False
    again = prepare(write("resolved.toml", dump(spec)), (), processes=3)
    assert again.programs == prepared.programs
    assert again.placement.notes == ()
    words = [word for pair in given for word in ("--set", pair)]
    assert main(["run", chain, *words, "--processes", "3", "--dry-run"]) == 0
    assert prepared.placement.notes[0] in capsys.readouterr().out


def test_a_run_on_fewer_processes_has_the_same_stages_and_the_note(chain):
    named = "partition.devices=['cuda:0', 'cuda:1', 'cuda:2']"
    network = measure(check_spec(chain, (*THREE, SPLIT, named, limit(163_328))))
    devices = planned_devices(network.spec.partition)
    three, two = (place_on_processes(network, devices, processes) for processes in (3, 2))
    assert [stage.nodes for stage in two.stages] == [stage.nodes for stage in three.stages]
    assert (two.schedule, two.words) == (three.schedule, None)
    assert two.notes == three.notes != ()
