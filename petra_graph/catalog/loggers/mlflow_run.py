"""A run of MLflow, through its client alone: no global state of MLflow changes.

The identity of MLflow's run is in `mlflow.json` of the run's directory, and a resumed run continues it. MLflow forgets no
values: those after the checkpoint are kept twice, the later ones from the resumed run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

from petra_graph.catalog.loggers.declared_loggers import MlflowOptions
from petra_graph.plugins import RunInfo
from petra_graph.spec.value_types import flat

_MOST_PARAMETERS = 100
"""The most parameters that one call takes."""
_LONGEST_PARAMETER = 500
"""The most characters of a parameter that every store takes."""


class MlflowRun:
    """The values as metrics, the specification as parameters."""

    def __init__(self, options: MlflowOptions, run: RunInfo) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        identity = run.directory / "mlflow.json"
        uri = options.tracking_uri or f"sqlite:///{(run.directory / 'mlflow.db').absolute()}"
        self._client = MlflowClient(tracking_uri=uri)
        if run.resumed_at is not None and identity.exists():
            self._run = json.loads(identity.read_text(encoding="utf-8"))["run_id"]
            self._client.set_terminated(self._run, "RUNNING")
            return
        experiment = self._client.get_experiment_by_name(options.experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(options.experiment)
        self._run = self._client.create_run(number, run_name=run.directory.name).info.run_id
        identity.write_text(json.dumps({"tracking_uri": uri, "run_id": self._run}) + "\n", encoding="utf-8")
        parameters = [Param(key, value[:_LONGEST_PARAMETER]) for key, value in flat(run.spec)]
        for first in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(self._run, params=parameters[first : first + _MOST_PARAMETERS])

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Log metrics."""
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)
