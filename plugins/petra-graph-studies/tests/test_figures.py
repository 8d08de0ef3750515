"""The paper's figures of a probed run, and the numbers that they show."""

from __future__ import annotations

import pytest
from petra_graph_studies.figures import report_fidelity

from petra_graph.errors import SpecError
from petra_graph.record.recorded_run import read_run


def test_pictures_and_numbers(saved_runs, tmp_path):
    facts = report_fidelity(saved_runs["probed"], tmp_path / "figures" / "v1.5")
    assert facts["figures"] == {name: f"{tmp_path}/figures/v1.5-{name}.png" for name in ("training", "stages")}
    for name in ("training", "stages"):
        assert (tmp_path / "figures" / f"v1.5-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (facts["method"], facts["epochs"], facts["stages"]) == ("petra", 2, [1, 2, 3, 4])
    assert set(facts["means by epoch"]["reconstruction_error"]) == {"2", "3"}
    points = read_run(saved_runs["probed"]).metrics["probe/cosine_to_delayed/stage-01"]
    first = [point.value for point in points if point.epoch == 1]
    assert facts["means by epoch"]["cosine_to_delayed"]["1"][0] == pytest.approx(sum(first) / len(first))


def test_a_run_without_a_probe(saved_run):
    with pytest.raises(SpecError, match="holds no measurement of a probe"):
        report_fidelity(saved_run)
