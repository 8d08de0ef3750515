"""The study of corrections: what its first epochs rule out, and what it chooses."""

from __future__ import annotations

from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from tools.studies import delay
from tools.studies.delay import MARGIN, PIPELINES, RATES, ROWS, SCALES, Setting, chosen, searched

SETTINGS = [Setting(row="adamw", rate=rate, scale=scale) for rate in RATES for scale in SCALES]


class FakeStudy:
    """Runs whose losses are known: the first epoch's, and for whole trainings three more."""

    def __init__(self, first):
        self.first, self.ran = first, []

    def carry_out(self, cases):
        self.ran += [case.name for case in cases]
        return {case.name: SimpleNamespace(case=case) for case in cases}

    def losses(self, done):
        kind, _, name = done.case.name.partition("/")
        first = self.first[name]
        assert (delay.FIRST_EPOCH in done.case.overrides) == (kind == "first")
        return [first] if kind == "first" else [first, first - 0.1, first - 0.2, first - 0.3]


def test_trainings_that_their_first_epoch_rules_out_are_ended(monkeypatch):
    first = {one.name: 2.0 + 0.1 * index for index, one in enumerate(SETTINGS)}
    study = FakeStudy(first)
    monkeypatch.setattr(delay, "losses", study.losses)
    found = searched(study, "adamw")
    whole = [name for name in first if first[name] <= 2.0 + MARGIN]
    assert 1 <= len(whole) < len(SETTINGS)
    assert [name for name in study.ran if name.startswith("search/")] == [f"search/{name}" for name in whole]
    assert {one.name: len(values) for one, values in found.items()} == {
        name: 4 if name in whole else 1 for name in first
    }


def test_the_least_loss_of_the_last_epoch_is_chosen():
    found = {one.key: [2.0] for one in SETTINGS}
    found[SETTINGS[1].key] = [2.1, 1.9]
    found[SETTINGS[4].key] = [2.2, 1.8]
    assert chosen("adamw", {"adamw": found}) == SETTINGS[4]


def test_a_pipeline_that_was_searched_has_its_own_setting():
    ended = {one.key: [2.0] for one in SETTINGS}
    found = {
        "adamw": ended | {SETTINGS[4].key: [2.2, 1.8]},
        "adamw, six stages, lockstep": ended | {SETTINGS[1].key: [2.2, 1.9]},
    }
    assert chosen("adamw", found, "six stages, lockstep") == SETTINGS[1]
    assert chosen("adamw", found, "six stages, auto") == SETTINGS[4]


def test_a_row_that_was_not_searched_is_refused():
    with pytest.raises(click.ClickException, match=r"search\.json has no muon: `search` this row first"):
        chosen("muon", {})


def test_a_correction_for_one_update_of_delay_is_searched_where_it_holds(monkeypatch, tmp_path):
    text = tmp_path / "input.txt"
    text.write_text("to be or not to be, that is the question")
    asked = []
    monkeypatch.setattr(delay, "searched", lambda study, row, pipeline: asked.append((row, pipeline)) or {})
    words = ["search", str(text), "--output", str(tmp_path), "--row", "error feedback", "--row", "adamw"]
    assert CliRunner().invoke(delay.main, words).exit_code == 0
    assert asked == [("error feedback", "two stages"), ("adamw", "six stages")]
    found = {one.key: [2.2, 1.8] for one in SETTINGS}
    assert chosen("error feedback", {"error feedback, two stages": found}, "two stages").row == "error feedback"


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("row", ROWS)
def test_names_are_those_of_folders(row, pipeline):
    assert set(Setting(row=row, rate=1e-3, scale=1.0, pipeline=pipeline).name).isdisjoint(" ,")
