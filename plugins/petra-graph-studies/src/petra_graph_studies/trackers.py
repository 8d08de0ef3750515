"""Services that keep runs: MLflow, and Weights & Biases.

The identity of a service's run is in `mlflow.json` or `wandb.json` of the run's directory, and a resumed run continues it.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from typing import Annotated, Literal

from petra_graph.plugins import Callback, Started
from petra_graph.spec.strict_values import flat

_MOST_PARAMETERS = 100
"""The most parameters that one call of MLflow takes."""
_LONGEST_PARAMETER = 500
"""The most characters of a parameter that every store of MLflow takes."""


class MlflowRun(Callback):
    """A run of MLflow, with the specification as its parameters; by default nothing leaves the run's directory.

    It goes through MLflow's client alone: no global state of MLflow changes. MLflow forgets no values: those after the checkpoint are kept twice, the later ones from the resumed run.
    """

    def __init__(
        self,
        *,
        tracking_uri: Annotated[
            str | None, "MLflow's store; default: the file `mlflow.db` in the run's directory"
        ] = None,
        experiment: Annotated[str, "the experiment's name"] = "petra-graph",
    ) -> None:
        self._uri, self._experiment = tracking_uri, experiment

    def started(self, run: Started) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        identity = run.directory / "mlflow.json"
        uri = self._uri or f"sqlite:///{(run.directory / 'mlflow.db').absolute()}"
        self._client = MlflowClient(tracking_uri=uri)
        if run.resumed_at is not None and identity.exists():
            self._run = json.loads(identity.read_text(encoding="utf-8"))["run_id"]
            self._client.set_terminated(self._run, "RUNNING")
            return
        known = self._client.get_experiment_by_name(self._experiment)
        number = known.experiment_id if known else self._client.create_experiment(self._experiment)
        self._run = self._client.create_run(number, run_name=run.directory.name).info.run_id
        identity.write_text(json.dumps({"tracking_uri": uri, "run_id": self._run}) + "\n", encoding="utf-8")
        parameters = [Param(key, value[:_LONGEST_PARAMETER]) for key, value in flat(run.spec)]
        for first in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(self._run, params=parameters[first : first + _MOST_PARAMETERS])

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandbRun(Callback):
    """A run of Weights & Biases, with the specification as its configuration; by default nothing leaves the run's directory.

    An offline run that is resumed writes another folder under `wandb/`: the values after the checkpoint are in both, and the later
    ones count if both are uploaded in order.

    wandb's own step must not go back, and a probe records a micro-batch when later ones are known already. So every row has the run's
    `step` as a value, over which the others are drawn, and wandb's own step is the next one if the run's goes back.
    """

    def __init__(
        self,
        *,
        project: Annotated[str, "the project's name"] = "petra-graph",
        mode: Annotated[
            Literal["offline", "online"],
            '"offline" writes `wandb/` in the run\'s directory, which `wandb sync` uploads',
        ] = "offline",
    ) -> None:
        self._project, self._mode = project, mode

    def started(self, run: Started) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        identity = run.directory / "wandb.json"
        goes_on = run.resumed_at is not None and identity.exists()
        name = json.loads(identity.read_text(encoding="utf-8"))["run_id"] if goes_on else secrets.token_hex(4)
        self._run = wandb.init(
            project=self._project,
            id=name,
            name=run.directory.name,
            dir=str(run.directory.absolute()),  # its service has a current folder of its own
            mode=self._mode,
            resume="allow" if goes_on and self._mode == "online" else None,
            config=dict(run.spec),
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
        )
        self._run.define_metric("*", step_metric="step")
        self._step = self._row = -1
        if not goes_on:
            identity.write_text(json.dumps({"project": self._project, "run_id": name}) + "\n", encoding="utf-8")

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Log values; those of one step may come in parts."""
        if step != self._step:
            self._row = max(step, self._row + 1)
            self._step = step
        self._run.log({**values, "epoch": epoch, "step": step}, step=self._row)

    def close(self) -> None:
        self._run.finish()
