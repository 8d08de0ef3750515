"""Seeds under several variants: what was finished is kept, and belongs to one specification."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tools.studies.seeds import main

ARGUMENTS = ["--seeds", "2", "--variant", "", "--set", "run.epochs=1"]


@pytest.fixture
def finished(tmp_path):
    """A file of two finished runs; a third run would need a.toml, which does not exist."""
    runs = {f"as it is; seed {seed}": {"top1": 0.5 + seed / 4} for seed in range(2)}
    output = tmp_path / "seeds.json"
    output.write_text(json.dumps({"spec": "a.toml", "overrides": ["run.epochs=1"], "runs": runs}))
    return output


def test_finished_runs_are_not_repeated(finished):
    done = CliRunner().invoke(main, ["a.toml", *ARGUMENTS, "--output", str(finished)], catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(done.output)["as it is"]["each"] == [50.0, 75.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["b.toml", *ARGUMENTS], "results with spec = 'a.toml' (asked for: 'b.toml')"),
        (["a.toml", *ARGUMENTS, "--set", "run.seed=3"], "results with overrides = ['run.epochs=1'] (asked for: "),
    ],
)
def test_results_of_another_specification_are_not_taken(finished, arguments, message):
    done = CliRunner().invoke(main, [*arguments, "--output", str(finished)])
    assert done.exit_code == 1
    assert f"{finished} holds {message}" in done.output
    assert "name another --output" in done.output
