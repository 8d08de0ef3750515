"""The paper's figures of a probed run, and the numbers that they show."""

from __future__ import annotations

import pytest
from petra_graph_studies.figures import report_fidelity

from petra_graph.errors import SpecError
from petra_graph.record.recorded_run import read_run


def test_picture_and_numbers(saved_runs, saved_run, tmp_path):
    means = report_fidelity(saved_runs["probed"], tmp_path / "v1.5.png")
    assert (tmp_path / "v1.5.png").read_bytes().startswith(b"\x89PNG")
    assert set(means["reconstruction_error"]) == {2, 3}
    points = read_run(saved_runs["probed"]).metrics["probe/cosine_to_delayed/stage-01"]
    first = [point.value for point in points if point.epoch == 1]
    assert means["cosine_to_delayed"][1][1] == pytest.approx(sum(first) / len(first))
    with pytest.raises(SpecError, match="holds no measurement of a probe"):
        report_fidelity(saved_run)
