"""MLflow's own client reads the values of `metrics.jsonl`, to the bit."""

from __future__ import annotations

import json

import pytest

from petra_graph.cli.main import main
from petra_graph.plugins.callback import Listener
from petra_graph.training.run import run
from tests.support.loggers import named, recorded
from tests.support.runs import SPEC, only_run, summary_of
from tests.support.stopping import StopAt

pytest.importorskip("mlflow")
pytestmark = pytest.mark.filterwarnings("default")  # those of MLflow and of what it imports are none of ours


def client_and_run(directory):
    from mlflow.tracking import MlflowClient

    identity = json.loads((directory / "mlflow.json").read_text())
    return MlflowClient(tracking_uri=identity["tracking_uri"]), identity["run_id"]


def stored(directory):
    client, identity = client_and_run(directory)
    return {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(identity, name)]
        for name in client.get_run(identity).data.metrics
    }


def test_the_same_values_to_the_bit(write):
    settings = [
        "callback.probe.options.per_epoch=3",
        "run.log_every=1",
    ]  # a probe's values come behind those of later steps
    run(write("small.toml", SPEC + named("callback", "mlflow", "probe")), settings, Listener())
    directory = only_run()
    assert stored(directory) == recorded(directory)
    client, identity = client_and_run(directory)
    kept = client.get_run(identity)
    assert kept.info.status == "FINISHED"
    assert kept.info.run_name == directory.name
    assert kept.data.params["optimizer.options.lr"] == "0.05"
    assert {path.name for path in directory.iterdir() if "mlflow" in path.name} == {"mlflow.db", "mlflow.json"}


def test_a_run_that_goes_on_is_the_same_run_of_mlflow(write):
    run(write("small.toml", SPEC + named("callback", "mlflow")), (), StopAt("trained 2/5"))
    directory = only_run()
    before = client_and_run(directory)[1]
    assert main(["run", "--resume", "latest"]) == 0
    assert summary_of(directory)["status"] == "done"
    assert client_and_run(directory)[1] == before
    found, lines = stored(directory), recorded(directory)
    assert {name: set(values) for name, values in lines.items()} == {
        name: set(values) for name, values in found.items()
    }
