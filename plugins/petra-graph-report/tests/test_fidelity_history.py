"""The history of a probe's measurements, and the pictures of it."""

from __future__ import annotations

import json

import pytest
from petra_graph_report.fidelity_figures import _by_stage, draw_over_stages, draw_over_training, report_fidelity
from petra_graph_report.fidelity_history import Point, fidelity_history, smooth
from PIL import Image

from petra_graph.errors import SpecError
from tests.support.contrast import GRAPHICS, contrast

QUANTITIES = (
    "cosine_to_delayed",
    "ratio_to_delayed",
    "cosine_to_end_to_end",
    "ratio_to_end_to_end",
    "delayed_cosine_to_end_to_end",
    "delayed_ratio_to_end_to_end",
)
RESOLVED = """\
name = "tiny"
method = { name = "petra", schedule = "lockstep", accumulation = 1, reversible = "nothing" }
partition = { stages = [["stem"], ["body"], ["head"]] }
[graph]
node = [{ name = "stem", kind = "buffered" }, { name = "body", kind = "reversible" }, { name = "head", kind = "head" }]
"""


@pytest.fixture
def history(tmp_path):
    """Return a function that reads the history of a run with some events."""

    def read(events, resolved=RESOLVED):
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        (run / "resolved.toml").write_text(resolved)
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
        return fidelity_history(run)

    return read


def events(epochs, *, stages=(1, 2, 3), rates=None, each=2, micro_batches=10):
    """A probe that says epoch + stage / 10 + 0.01 for the first measurement of an epoch, 0.03 for the second."""
    for epoch in range(1, epochs + 1):
        for part in range(each):
            step = (epoch - 1) * micro_batches + (part + 1) * micro_batches // each
            for stage in stages:
                value = epoch + stage / 10 + 0.01 + 0.02 * part
                for quantity in (*QUANTITIES, *(["reconstruction_error"] if stage == 2 else [])):
                    yield {"epoch": epoch, "step": step, "name": f"probe/{quantity}/stage-{stage:02d}", "value": value}
        rate = (rates or {}).get(epoch, 0.1)
        yield {"epoch": epoch, "step": epoch * micro_batches, "name": "learning_rate", "value": rate}


def test_a_node_that_keeps_its_input_reconstructs_nothing(history):
    one_keeps = RESOLVED.replace('"nothing" }', '"nothing", keep = { body = "input" } }')
    assert (history(events(1)).reconstructing, history(events(1), one_keeps).reconstructing) == ({2}, set())


def test_points_are_means_over_an_epoch(history):
    found = history(events(12))
    assert (found.epochs, found.stages, found.averaged) == (12, (1, 2, 3), True)
    assert list(found.points["reconstruction_error"]) == [2]
    points = found.points["cosine_to_delayed"][3]
    assert [(point.epoch, point.at) for point in points] == [(epoch, epoch) for epoch in range(1, 13)]
    assert [point.value for point in points] == pytest.approx([epoch + 0.32 for epoch in range(1, 13)])
    assert found.at_epoch("cosine_to_delayed", 5) == pytest.approx({1: 5.12, 2: 5.22, 3: 5.32})
    assert found.at_epoch("cosine_to_delayed", 13) == {}


def test_few_epochs_have_each_measurement(history):
    found = history(events(2))
    assert not found.averaged
    points = found.points["ratio_to_delayed"][1]
    assert [(point.epoch, point.at) for point in points] == [(1, 0.5), (1, 1.0), (2, 1.5), (2, 2.0)]
    assert found.at_epoch("ratio_to_delayed", 2) == pytest.approx({1: 2.12, 2: 2.22, 3: 2.32})


def test_a_run_in_its_first_epoch(history):
    found = history(event for event in events(1) if event["name"] != "learning_rate")
    assert [point.at for point in found.points["ratio_to_delayed"][1]] == [0.5, 1.0]
    assert found.chosen_epochs() == (1,)


def test_nothing_measured(history):
    with pytest.raises(SpecError, match="holds no measurement of a probe"):
        history([{"epoch": 1, "step": 9, "name": "train/loss", "value": 1.0}])


@pytest.mark.parametrize(
    ("epochs", "drops", "chosen"),
    [
        (300, (151, 226), (37, 150, 225, 300)),  # the paper's: 25, 125, 175, 250
        (20, (11,), (2, 10, 20)),
        (90, (31, 61, 81), (7, 30, 60, 90)),
        (40, (), (10, 20, 30, 40)),
        (3, (), (1, 2, 3)),
    ],
)
def test_epochs_to_look_at(history, epochs, drops, chosen):
    rates = {epoch: 0.1 ** (1 + sum(epoch >= drop for drop in drops)) for epoch in range(1, epochs + 1)}
    found = history(events(epochs, rates=rates, stages=(1,), each=1))
    assert found.drops == drops
    assert found.chosen_epochs() == chosen


def test_rolling_means():
    points = [Point(epoch=1, at=0.0, value=value) for value in (0.0, 3.0, 6.0, 0.0)]
    assert smooth(points, 1) == [0.0, 3.0, 6.0, 0.0]
    assert smooth(points, 3) == [1.5, 3.0, 3.0, 3.0]
    assert smooth(points, 2) == [1.5, 4.5, 3.0, 0.0]


def test_numbers(history, tmp_path):
    assert history(events(2, stages=(1,), rates={1: 0.1, 2: 0.01})).reconstructing == {2}
    found = report_fidelity(tmp_path / "run")
    assert found["learning rate"] == {"1": 0.1, "2": 0.01}
    assert set(found["means by epoch"]) == set(QUANTITIES)
    assert found["means by epoch"]["cosine_to_delayed"]["1"] == pytest.approx([1.12, 2.12])


@pytest.mark.parametrize("epochs", [1, 12])
def test_pictures(history, tmp_path, epochs):
    """Both are PNG files of a sensible size, also where ratios run far apart and where there is little to draw."""
    found = history(events(epochs, rates={epoch: 0.1 / epoch**2 for epoch in range(1, epochs + 1)}))
    for draw in (draw_over_training, draw_over_stages):
        path = tmp_path / "figure.png"
        draw(found, path)
        png = path.read_bytes()
        assert png.startswith(b"\x89PNG")
        assert all(int.from_bytes(png[at : at + 4]) >= 500 for at in (16, 20))
    assert {path.name for path in tmp_path.iterdir()} == {"figure.png", "run"}


def test_figures_are_opaque_whatever_the_readers_settings(history, tmp_path):
    import matplotlib as mpl

    found = history(events(2))
    with mpl.rc_context({"savefig.transparent": True, "figure.facecolor": "black", "savefig.facecolor": "none"}):
        for draw in (draw_over_training, draw_over_stages):
            draw(found, tmp_path / "figure.png")
            corner = Image.open(tmp_path / "figure.png").convert("RGBA").getpixel((0, 0))
            assert corner == (255, 255, 255, 255)


@pytest.mark.parametrize("stages", [1, 2, 10, 200])
def test_every_stages_colour_shows_on_white(stages):
    from matplotlib.colors import to_hex

    for colour in _by_stage(range(1, stages + 1)).values():
        assert contrast(to_hex(colour), "#ffffff") >= GRAPHICS
