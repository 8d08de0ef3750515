"""A run of Weights & Biases, offline unless its options say otherwise.

The identity of its run is in `wandb.json` of the run's directory, and a resumed run continues it. An offline run that is resumed
writes another folder under `wandb/`: the values after the checkpoint are in both, and the later ones count where both are
uploaded in order.

wandb's own step must not go back, and a probe records a micro-batch when later ones are known already. So every row has the run's
`step` as a value, over which the others are drawn, and wandb's own step is the next one where the run's goes back.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping

from petra_graph.catalog.loggers.declared_loggers import WandbOptions
from petra_graph.plugins import RunInfo


class WandbRun:
    """The values as history, the specification as configuration."""

    def __init__(self, options: WandbOptions, run: RunInfo) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        identity = run.directory / "wandb.json"
        goes_on = run.resumed_at is not None and identity.exists()
        name = json.loads(identity.read_text(encoding="utf-8"))["run_id"] if goes_on else secrets.token_hex(4)
        self._run = wandb.init(
            project=options.project,
            id=name,
            name=run.directory.name,
            dir=str(run.directory.absolute()),  # its service has a current folder of its own
            mode=options.mode,
            resume="allow" if goes_on and options.mode == "online" else None,
            config=dict(run.spec),
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
        )
        self._run.define_metric("*", step_metric="step")
        self._step = self._row = -1
        if not goes_on:
            identity.write_text(json.dumps({"project": options.project, "run_id": name}) + "\n", encoding="utf-8")

    def record(self, *, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Log values; those of one step may come in parts."""
        if step != self._step:
            self._row = max(step, self._row + 1)
            self._step = step
        self._run.log({**values, "epoch": epoch, "step": step}, step=self._row)

    def close(self) -> None:
        self._run.finish()
