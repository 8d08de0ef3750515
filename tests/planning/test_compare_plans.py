"""Plans compared: methods and other uses of the devices side by side, which of them to choose, and given specs."""

from __future__ import annotations

from functools import cache, partial

import pytest

from petra_graph.compiler.plan import Figures
from petra_graph.errors import SpecError
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.compare_plans import (
    advised,
    compare_methods,
    compare_specs,
    keys_to_set,
    other_uses,
    recommended,
)
from petra_graph.planning.plan_spec import Planner
from petra_graph.program.method import METHODS
from petra_graph.report.plan_text import plan_text
from tests.support import ROOT
from tests.support.runs import SPEC, plan

FOUR = ("partition.devices=4", "partition.device_type=cpu")


@pytest.fixture
def spec(write):
    return write("small.toml", SPEC)


@cache
def _rows(overrides):
    rows = compare_methods(Planner("small.toml", overrides)).rows
    return {
        (row.method, row.schedule): row
        for row in reversed(rows)
        if not row.keep and row.replicas == 1 and not any("partition" in text for text in row.set)
    }


def rows_of(spec, *overrides):
    """Compare once under the same overrides: `spec` is the same text in all tests."""
    return _rows(overrides)


def test_every_method_under_each_of_its_schedules(spec):
    rows = rows_of(spec, *FOUR)
    assert {method for method, _ in rows} == set(METHODS)
    assert ("petra", "lockstep") in rows
    assert ("petra", "sequential") not in rows
    assert rows["backprop", "sequential"].speedup < 1, "it waits for links, and one device alone does not"
    assert rows["petra", "1f1b"].memory_total < rows["petra", "lockstep"].memory_total


def test_a_method_that_needs_more_than_the_card_has_is_said_not_to_fit(spec):
    """`gpipe` with 24.86 GiB stood among the methods that fit a card of 24."""
    known = rows_of(spec, *FOUR).values()
    assert {row.fits for row in known} == {None}, "the memory of cpu is not known"
    between = sum(row.memory_peak for row in known) // len(known)
    card = f'partition.device.card={{kind="cpu", memory="{between} B", float32_flops=1e12, memory_bandwidth=1e11}}'
    on_cards = (card, "partition.devices=4", "partition.device_type=card")
    rows = rows_of(spec, *on_cards)
    assert {row.fits for row in rows.values()} == {True, False}
    assert all(row.memory_peak <= between if row.fits else "would hold" in row.note for row in rows.values())


def test_what_theory_says(spec):
    rows = rows_of(spec, *FOUR, "method.accumulation=1")
    petra, delayed = rows["petra", "lockstep"], rows["delayed-reconstructed", "lockstep"]
    assert petra.memory_total < delayed.memory_total < rows["pipedream", "lockstep"].memory_total
    assert petra.staleness == 2 * rows["petra", "1f1b"].staleness == 6


def test_a_specification_that_says_what_nodes_keep_has_a_row_of_its_own(spec):
    """Nodes then keep what is fastest within the limit; the other rows are the methods as they are."""
    gpipe = [*FOUR, "method.name=gpipe", "method.schedule=fill-drain"]
    limit = max(device.bytes.total for device in plan(spec, gpipe).devices) - 1
    rows = compare_methods(Planner(spec, (*gpipe, f"partition.memory={limit}B", "method.keep=auto"))).rows
    *others, own, flushed = (row for row in rows if not any("partition" in text for text in row.set))
    assert not any(row.keep for row in others)
    assert (flushed.method, flushed.keep) == ("1f1b-flush", "auto"), "the synchronous pipeline that fits most often"
    assert (own.method, own.keep) == ("gpipe", "auto")
    assert next(row.memory_peak for row in others if row.method == "gpipe") is None
    assert own.memory_peak <= limit


def test_what_every_method_refuses_is_wrong(spec):
    with pytest.raises(SpecError, match="5 stages"):
        compare_methods(Planner(spec, (*FOUR, "partition.stages=5")))


def test_a_comparison_has_other_uses_whose_speed_is_over_the_same_device(spec):
    settings = ("partition.devices=4", "partition.device_type=h100", "method.accumulation=4")
    found = compare_methods(Planner(spec, settings))
    rows = found.rows
    assert found.speedup_over == "plain backpropagation on one h100"
    assert {(row.replicas, row.devices, row.method) for row in rows if row.devices < 4} == {
        (1, 1, "backprop"), (1, 1, "reversible-backprop"), (2, 2, "1f1b-flush"), (2, 2, "petra"), (4, 1, "backprop"), (4, 1, "reversible-backprop"),
    }  # fmt: skip
    alone = next(row for row in rows if (row.devices, row.replicas, row.method) == (1, 1, "backprop"))
    assert alone.speedup == 1
    for row in rows:
        assert row.samples_per_second / row.speedup == pytest.approx(alone.samples_per_second)
    whole = next(row for row in rows if row.replicas == 4)
    assert whole.memory_total == pytest.approx(4 * whole.memory_peak, abs=4)
    assert is_unbeaten(rows[found.recommended], rows)
    again = advised(Planner(spec, [*settings, *whole.set])).as_json()["timing"]
    assert again["speedup"] == pytest.approx(whole.speedup, rel=1e-3)
    assert again["speedup_over"] == found.speedup_over


REVNET = str(ROOT / "specs" / "revnet18_cifar10.toml")
UNLIKE = (
    "partition.devices=4",
    "partition.stages=4",
    'partition.device_type=["t4", "h100", "t4", "h100"]',
    "method.accumulation=4",
)


def test_the_fastest_of_unlike_devices_are_looked_at_alone():
    """Two H100 and six T4 had a plan of eight stages, and "change nothing", where two replicas on the H100s were faster."""
    planner = Planner(REVNET, UNLIKE)
    document = advised(planner).as_json()
    assert document["warnings"][0].startswith('set method.name = "backprop"; ')
    assert "partition.replicas = 2; " in document["warnings"][0]
    found = compare_methods(planner)
    row = next(row for row in found.rows if (row.replicas, row.method) == (2, "backprop"))
    assert is_unbeaten(row, found.rows)
    assert row.samples_per_second > 1.05 * max(one.samples_per_second for one in found.rows if one.method == "petra")
    assert 'partition.device_type = "h100"' in row.set
    better = advised(Planner(REVNET, [*UNLIKE, *row.set])).as_json()
    assert not [text for text in better["warnings"] if "as fast" in text], "nothing is better than what was chosen"
    assert better["timing"]["samples_per_second"] == pytest.approx(row.samples_per_second)


def is_unbeaten(row, rows):
    """No other row is at least as fast, as little late and as small, and by 1 % better in one of these."""
    own = row.figures
    for other in (one.figures for one in rows if one.figures):
        ratios = (
            other.samples_per_second / own.samples_per_second,
            (1 + own.staleness) / (1 + other.staleness),
            own.memory_peak / other.memory_peak,
        )
        if min(ratios) >= 1 / 1.01 and max(ratios) > 1.01:
            return False
    return True


def row(speed, stale=0.0, memory=100):
    return Figures(speed, stale, memory)


def test_of_rows_that_are_about_as_fast_the_least_late_is_recommended():
    rows = [row(100, stale=2), row(96), row(97, stale=1), row(80)]
    assert recommended(rows) == 1


def test_between_equally_late_rows_that_are_about_as_fast_clearly_less_memory_decides():
    assert recommended([row(100, stale=1, memory=100), row(97, stale=1, memory=80), row(96, stale=1, memory=80)]) == 1
    assert recommended([row(100, memory=100), row(97, memory=95)]) == 0, "not clearly"
    assert recommended([row(100, memory=100), row(90, memory=50)]) == 0, "not about as fast"


def test_given_specs_are_rows_and_a_refusal_is_one_with_its_reason(spec):
    def planner(*settings):
        return partial(Planner, spec, settings)

    found = compare_specs({"a": planner(*FOUR), "b": planner("partition.memory=1KiB"), "c": planner("data.btch=1")})
    first, second, third = found.rows
    assert first.samples_per_second == plan(spec, FOUR).timing.samples_per_second
    assert (second.fits, second.samples_per_second, second.method) == (False, None, None)
    assert third.note.startswith("a run would be refused: ")
    text = plan_text(found)
    assert "plans compared" in text
    assert 'b: device "cpu" would hold' in text
    with pytest.raises(SpecError, match="btch"):
        compare_specs({"c": planner("data.btch=1")})


@pytest.fixture
def checked(write):
    path = write("small.toml", SPEC)
    return lambda *overrides: check_spec(path, overrides).spec


def samples(spec):
    return spec.data.batch * spec.method.accumulation * spec.partition.replicas


@pytest.mark.parametrize(
    ("accumulation", "batch", "found"),
    [
        (4, 8, {2: (2, 8), 4: (1, 8)}),
        (2, 8, {2: (1, 8), 4: (1, 4)}),
        (1, 8, {2: (1, 4), 4: (1, 2)}),
        (6, 8, {2: (3, 8), 4: (3, 4)}),
        (1, 2, {2: (1, 1)}),
        (1, 1, {}),
    ],
)
def test_an_update_averages_the_same_samples(checked, accumulation, batch, found):
    given = checked("partition.devices=4", f"method.accumulation={accumulation}", f"data.batch={batch}")
    variants = [one for one in other_uses(given) if one.partition.replicas > 1]
    assert {samples(one) for one in variants} <= {samples(given)}
    assert {one.partition.replicas: (one.method.accumulation, one.data.batch) for one in variants} == found
    assert all(one.partition.devices * one.partition.replicas == 4 for one in variants)


def test_a_method_that_cannot_clip_over_all_stages_is_said_to_clip_by_stage(checked):
    given = checked("partition.devices=4", "method.name=backprop", "optimizer.clip={limit=1.0, scope='global'}")
    said = [keys_to_set(given, one) for one in other_uses(given) if one.method.name == "petra"]
    assert said
    assert all('optimizer.clip.scope = "stage"' in keys for keys in said)
    alone = [keys_to_set(given, one) for one in other_uses(given) if one.method.name == "reversible-backprop"]
    assert 'optimizer.clip.scope = "stage"' not in alone[0]
