"""torch's own ways to train a network on several devices, for comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
@pytest.mark.thorough
def test_two_processes_train_by_pipelines_and_data_parallelism(tmp_path):
    file = tmp_path / "result.json"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    benchmark = ["tools/bench/torch_pipelines.py", "--spec", "specs/quickstart.toml", "--set", "data.batch=8"]
    options = ["--micro-batches", "2", "--updates", "1", "--rounds", "1", "--output", file]
    subprocess.run([*launch, *benchmark, *options], cwd=ROOT, check=True, timeout=300)
    rates = json.loads(file.read_text())["samples per second"]
    ways = ["torch 1F1B", "torch GPipe"]
    assert list(rates) == [*ways, *(f"{way}, checkpointed" for way in ways), "DDP"]
    assert all(rate > 0 for rate in rates.values())
