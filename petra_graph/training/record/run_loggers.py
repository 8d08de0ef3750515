"""The loggers of a run, opened in the process that records."""

from __future__ import annotations

from petra_graph.errors import PluginError, RunFailed, SpecError
from petra_graph.record.metrics import Metrics, Position
from petra_graph.registry.logger import RunInfo
from petra_graph.spec.schema import as_mapping
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.record.resolved_spec import resolved


def open_loggers(prepared: Prepared, metrics: Metrics, since: Position | None) -> None:
    """Let metrics go to the loggers of a specification, too.

    Args:
        prepared: the run.
        metrics: whose file ends where the run begins or goes on.
        since: the run goes on from there; None: it begins.

    Raises:
        PluginError: a logger cannot be built, or breaks its contract.
        RunFailed: it refuses its options.
    """
    run = RunInfo(
        directory=metrics.directory,
        name=prepared.spec.name,
        spec=as_mapping(resolved(prepared)),
        resumed_at=None if since is None else since.step,
    )
    for logger in prepared.checked.loggers:
        try:
            metrics.add(str(logger.plugin), logger.build(run))
        except SpecError as error:
            raise RunFailed(prepared.checked.loaded.located(error.problems)) from error
        except PluginError as error:
            # TensorBoard, which is there by default where it is installed, may be of a version that torch refuses.
            if prepared.spec.logger is not None or not isinstance(error.__cause__, ImportError):
                raise
