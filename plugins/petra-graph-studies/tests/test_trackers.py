"""Wandb and mlflow get the values of `metrics.jsonl`, to the bit, and a resumed run continues its run there."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from petra_graph.cli.main import main
from petra_graph.plugins.callback import Listener
from petra_graph.training.run import run
from tests.support.runs import SPEC, StopAt, named, only_run, recorded

pytestmark = pytest.mark.filterwarnings("default")  # we cannot mend the warnings of MLflow and of what it imports
PROBED = ["callback.probe.options.per_epoch=3", "run.log_every=1"]
"""A probe's values come behind those of later steps."""


def of_mlflow(directory):
    from mlflow.tracking import MlflowClient

    identity = json.loads((directory / "mlflow.json").read_text())
    client = MlflowClient(tracking_uri=identity["tracking_uri"])
    kept = client.get_run(identity["run_id"])
    names = kept.data.metrics
    histories = {name: client.get_metric_history(identity["run_id"], name) for name in names}
    return kept, {name: [(one.step, one.value) for one in history] for name, history in histories.items()}


def test_mlflow_has_what_was_recorded_and_a_run_that_goes_on_is_one_run(write):
    pytest.importorskip("mlflow")
    spec = write("small.toml", SPEC + named("callback", "mlflow", "probe"))
    run(spec, PROBED, StopAt("trained 2/5"))
    directory = only_run()
    before, values = of_mlflow(directory)
    assert values == recorded(directory)
    assert main(["run", "--resume", "latest"]) == 0
    kept, values = of_mlflow(directory)
    assert {name: set(one) for name, one in recorded(directory).items()} == {n: set(one) for n, one in values.items()}
    assert kept.info.run_id == before.info.run_id
    assert (kept.info.status, kept.info.run_name) == ("FINISHED", directory.name)
    assert kept.data.params["optimizer.options.lr"] == "0.05"
    assert {path.name for path in directory.iterdir() if "mlflow" in path.name} == {"mlflow.db", "mlflow.json"}


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for wandb: its runs, each with what `init` was given and the rows that it logged."""
    fake = ModuleType("wandb")
    fake.__spec__ = ModuleSpec("wandb", None)
    fake.runs = []

    def init(**given):
        rows = []
        fake.runs.append(SimpleNamespace(given=given, rows=rows))
        return SimpleNamespace(
            define_metric=lambda *_, **__: None,
            log=lambda values, step: rows.append((step, values)),
            finish=lambda: rows.append(None),
        )

    fake.init, fake.Settings = init, dict
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def logged(one):
    values = {}
    for _, row in one.rows[:-1]:
        for name in row.keys() - {"epoch", "step"}:
            values.setdefault(name, []).append((row["step"], row[name]))
    return values


def test_wandb(write, wandb):
    run(write("small.toml", SPEC + named("callback", "wandb", "probe")), PROBED, Listener())
    directory = only_run()
    (one,) = wandb.runs
    assert logged(one) == recorded(directory)
    assert one.rows[-1] is None, "it is finished"
    steps = [step for step, _ in one.rows[:-1]]
    assert steps == sorted(steps), "wandb's own step never goes back"
    assert (one.given["name"], one.given["mode"]) == (directory.name, "offline")
    assert one.given["id"] == json.loads((directory / "wandb.json").read_text())["run_id"]
