"""The study of delay on images: the rates that it tries, those that it chooses, and rows that are specifications."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from petra_graph.planning.check.check_spec import check_spec
from tests.support import ROOT
from tools.studies import delay_images
from tools.studies.delay_images import COMMON, FIRST_RATES, HELD_OUT, ROWS, SPEC, Setting, best_rate, searched, spreads


class FakeStudy:
    """Runs whose held-out loss is known, by learning rate."""

    def __init__(self, folder, loss_of):
        self.folder, self.loss_of, self.ran = folder, loss_of, []

    def carry_out(self, cases):
        self.ran += [case.name for case in cases]
        return {case.name: self._done(case) for case in cases}

    def _done(self, case):
        (rate,) = (float(text.partition("=")[2]) for text in case.overrides if text.startswith("optimizer.options.lr="))
        directory = self.folder / case.name
        directory.mkdir(parents=True)
        events = [{"name": "test/loss", "value": self.loss_of(rate)}]
        if f"probe.per_epoch={delay_images.LOOKS}" in case.overrides:
            looks = [9.0] * delay_images.WARM_UP + [0.5, 0.7]
            events += [{"name": "probe/cosine_to_end_to_end/stage-10", "value": value} for value in looks]
        (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
        return SimpleNamespace(directory=directory, accuracies=lambda: [50.0])


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (0.0125, {0.00625, 0.0125, 0.025}),
        (0.05, {0.00625, 0.0125, 0.025, 0.05, 0.1}),
        (0.003125, {0.0015625, 0.003125, 0.00625, 0.0125, 0.025}),
    ],
)
def test_rates_are_tried_until_the_best_has_a_neighbour_on_each_side(best, tried, tmp_path):
    found = searched(FakeStudy(tmp_path, lambda rate: abs(rate - best)), ["sgd"])["sgd"]
    assert set(found) == tried
    assert best_rate(found) == best


def test_each_row_begins_with_its_optimizer_s_rates(tmp_path):
    study = FakeStudy(tmp_path, lambda rate: abs(rate - (0.0125 if rate > 0.004 else 0.001)))
    found = searched(study, ["spike", "muon"])
    assert {row: set(values) for row, values in found.items()} == {
        "spike": set(FIRST_RATES["sgd"]),
        "muon": set(FIRST_RATES["muon"]),
    }


def test_the_commands_write_what_they_found_and_use_it(tmp_path, monkeypatch):
    rates = {"sgd": 0.025, "muon": 0.001}
    study = FakeStudy(tmp_path / "runs", lambda rate: abs(rate - rates["sgd" if rate > 0.004 else "muon"]))
    study.facts = dict
    monkeypatch.setattr(delay_images, "_study", lambda *_: study)
    (tmp_path / "images").mkdir()
    where = [str(tmp_path / "images"), "--output", str(tmp_path), "--row", "sgd", "--row", "muon"]
    shown = invoke("search", *where).splitlines()
    assert shown[0].endswith(
        "lr 0.00625: 0.019, 50.00 %, lr 0.0125: 0.013, 50.00 %, lr 0.025: 0.000, 50.00 %, lr 0.05: 0.025, 50.00 %"
    )
    assert "sgd" in (shown := invoke("seeds", *where, "--seeds", "2"))
    assert "50.00 % (standard deviation 0.0, 2 seeds)" in shown
    found = json.loads((tmp_path / "seeds.json").read_text())[delay_images.EACH_EPOCH]
    seeds = {"seed 0": [50.0], "seed 1": [50.0], "mean": [50.0], "standard deviation": [0.0]}
    assert found == {row: {"lr": rate, **seeds} for row, rate in rates.items()}
    assert "0.60" in invoke("probe", *where)
    found = json.loads((tmp_path / "probe.json").read_text())[delay_images.BY_STAGE]
    probed = {"cosine to end-to-end": {"stage-10": 0.6}, "reconstruction error": {}}
    assert found == {row: {"lr": rate, **probed} for row, rate in rates.items()}


def invoke(*arguments):
    done = CliRunner().invoke(delay_images.main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_rows_that_were_not_searched_are_refused(tmp_path):
    for command in ("seeds", "probe"):
        done = CliRunner().invoke(
            delay_images.main, [command, str(tmp_path), "--output", str(tmp_path), "--row", "spike"]
        )
        assert done.exit_code == 1
        assert "has no spike: `search` these rows first" in done.output


def test_seeds_are_summed_up_epoch_by_epoch():
    assert spreads([[50.0, 60.0], [52.0, 60.0]]) == {"mean": [51.0, 60.0], "standard deviation": [1.4142, 0.0]}
    assert spreads([[50.0]]) == {"mean": [50.0], "standard deviation": [None]}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("epochs", [1, delay_images.EPOCHS])
def test_rows_are_specifications(row, epochs, tmp_path):
    overrides = (f"data.options.root={tmp_path}", *COMMON, HELD_OUT, *Setting(row=row, rate=0.01).overrides(epochs))
    spec = check_spec(str(ROOT / SPEC), overrides).spec
    assert (spec.method.accumulation, spec.run.epochs, spec.lr_schedule.warmup_epochs) == (1, epochs, epochs / 10)
    assert spec.optimizer.options["lr"] == 0.01
