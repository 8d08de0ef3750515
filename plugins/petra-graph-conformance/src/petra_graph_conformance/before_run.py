"""What a run tries before it trains: whether its parts fit, and plugins that are not this project's, if it has any."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from petra_graph.training.before_run import Tried
    from petra_graph.training.prepared_run import Prepared
    from petra_graph.training.start_reporter import StartReporter


def before_run(prepared: Prepared, reporter: StartReporter) -> Tried:
    """Try them, and return warnings of what may be meant, and the verdicts.

    Raises:
        SpecError: loss, metrics or `checkpoint.best` do not fit the head and the data.
        PluginError: a plugin breaks its promises, or the data set raised, or returned what it does not declare.
    """
    from petra_graph_conformance.head_and_targets import HeadAndTargets
    from petra_graph_conformance.run_check import RunCheck

    fit = HeadAndTargets(prepared)
    fit.require_loss()
    fit.require_mixing()
    tried = RunCheck(prepared=prepared, reporter=reporter).run()
    with reporter.step("computing the loss and metrics of some targets", prepared.spec.run.watchdog):
        fit.require_metrics()
    return tried
