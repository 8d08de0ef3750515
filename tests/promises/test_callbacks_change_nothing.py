"""Runs whose values are kept everywhere, and with averages, are runs without them, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from petra_graph.cli.main import main
from tests.support.loggers import named
from tests.support.runs import SPEC, only_run, weights_bytes, without_times

SERVICES = ["mlflow", "wandb"]
"""Callbacks whose packages the tests do without, where they are not installed."""
EVERYTHING = named("callback", "jsonl", "csv", "tensorboard", "ema")


def same_run(one: Path, other: Path) -> None:
    assert weights_bytes(one) == weights_bytes(other)
    assert without_times(one) == without_times(other)


def test_values_kept_everywhere_and_an_average(write):
    assert main(["run", write("plain.toml", SPEC), "--set", "run.directory=plain"]) == 0
    assert main(["run", write("full.toml", SPEC + EVERYTHING)]) == 0
    same_run(only_run(), only_run("plain"))
    left = {path.name for path in only_run().iterdir()}
    assert left >= {"metrics.csv", "weights-ema.safetensors"}


@pytest.mark.processes
@pytest.mark.filterwarnings("default")  # those of the packages
def test_with_services(write):
    for name in SERVICES:
        pytest.importorskip(name)
    assert main(["run", write("plain.toml", SPEC), "--set", "run.directory=plain"]) == 0
    assert main(["run", write("full.toml", SPEC + EVERYTHING + named("callback", *SERVICES))]) == 0
    same_run(only_run(), only_run("plain"))
