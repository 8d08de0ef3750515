"""All promises of a plugin at once.

Decision: the promises on which others rest (declaration, construction, shapes) come first, and nothing is checked after a
broken one; all others are checked even where some are broken, so that an author sees the whole list.

Decision: what applies to a plugin is known before anything runs, so that each promise can be a test of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import frozen

from petra_graph.blocks import AdditiveCoupling, Block, Reversible, TwoFunctionCoupling
from petra_graph.errors import PluginError
from petra_graph.registry.author_code import raised_at
from petra_graph.testing.any_trial import AnyTrial
from petra_graph.testing.architectures import (
    ArchitectureTrial,
    check_graph,
    check_network,
    check_nodes,
    check_other_samples,
)
from petra_graph.testing.backward import check_autocast, check_gradients, check_inverse, check_one_evaluation
from petra_graph.testing.broken_promise import BrokenPromise
from petra_graph.testing.construction import check_construction
from petra_graph.testing.data_sets import (
    DataSetTrial,
    check_classes,
    check_data_set_construction,
    check_own_memory,
    check_rows,
    check_same_samples,
    check_samples,
    check_targets_alone,
    check_test_samples,
    check_workers,
)
from petra_graph.testing.declarations import check_code_imports_no_torch, check_declaration, check_plugin_declaration
from petra_graph.testing.evaluation import check_evaluation_mode, check_randomness, check_recomputation
from petra_graph.testing.losses import (
    LossTrial,
    check_loss_construction,
    check_mean,
    check_metrics,
    check_scalar,
    check_shares,
    check_untouched,
    check_weights,
)
from petra_graph.testing.lr_schedules import (
    LrScheduleTrial,
    check_cheap,
    check_finite,
    check_lr_schedule_construction,
    check_pure,
)
from petra_graph.testing.observers import (
    CallbackTrial,
    LoggerTrial,
    check_callback_state,
    check_calls,
    check_changes,
    check_changes_nothing,
    check_logger_construction,
    check_resumed,
    check_values,
)
from petra_graph.testing.optimizers import (
    OptimizerTrial,
    check_checkpoint,
    check_every_parameter,
    check_learning_rate,
    check_optimizer_construction,
    check_optimizer_state_dict,
    check_same_steps,
)
from petra_graph.testing.report import BrokenPromises, Outcome, Report
from petra_graph.testing.state import check_state_dict, check_statistics
from petra_graph.testing.streams import check_meta_device, check_shapes, check_streams_untouched
from petra_graph.testing.trial import Trial

Check = Callable[[Any], None]
"""Checks one promise of a trial, and raises BrokenPromise."""


@frozen
class Promises:
    """The promises of a kind of plugin, by the names that messages use, with the check of each."""

    foundations: Mapping[str, Check]
    """Without these, no other can be checked."""
    others: Mapping[str, Check]

    @property
    def all(self) -> Mapping[str, Check]:
        """All of them, in the order in which they are checked."""
        return {**self.foundations, **self.others}


PROMISES: Mapping[str, Promises] = MappingProxyType(
    {
        Trial.kind: Promises(
            {"declaration": check_declaration, "construction": check_construction, "shapes": check_shapes},
            {
                "streams untouched": check_streams_untouched,
                "inverse": check_inverse,
                "one evaluation": check_one_evaluation,
                "gradients": check_gradients,
                "recomputation": check_recomputation,
                "statistics": check_statistics,
                "randomness": check_randomness,
                "autocast": check_autocast,
                "evaluation mode": check_evaluation_mode,
                "state dictionary": check_state_dict,
                "meta device": check_meta_device,
            },
        ),
        ArchitectureTrial.kind: Promises(
            {"declaration": check_plugin_declaration, "nodes": check_nodes, "graph": check_graph},
            {
                "network": check_network,
                "other samples": check_other_samples,
                "no torch": check_code_imports_no_torch,
            },
        ),
        OptimizerTrial.kind: Promises(
            {"declaration": check_plugin_declaration, "construction": check_optimizer_construction},
            {
                "every parameter": check_every_parameter,
                "learning rate": check_learning_rate,
                "repeatable": check_same_steps,
                "state dictionary": check_optimizer_state_dict,
                "checkpoint": check_checkpoint,
            },
        ),
        LrScheduleTrial.kind: Promises(
            {"declaration": check_plugin_declaration, "construction": check_lr_schedule_construction},
            {
                "finite": check_finite,
                "pure": check_pure,
                "cheap": check_cheap,
                "no torch": check_code_imports_no_torch,
            },
        ),
        LossTrial.kind: Promises(
            {
                "declaration": check_plugin_declaration,
                "construction": check_loss_construction,
                "scalar": check_scalar,
            },
            {
                "weights": check_weights,
                "mean over samples": check_mean,
                "metrics": check_metrics,
                "shares": check_shares,
                "untouched": check_untouched,
            },
        ),
        DataSetTrial.kind: Promises(
            {
                "declaration": check_plugin_declaration,
                "construction": check_data_set_construction,
                "samples": check_samples,
            },
            {
                "classes": check_classes,
                "rows": check_rows,
                "repeatable": check_same_samples,
                "test samples": check_test_samples,
                "targets alone": check_targets_alone,
                "own memory": check_own_memory,
                "workers": check_workers,
            },
        ),
        LoggerTrial.kind: Promises(
            {"declaration": check_plugin_declaration, "construction": check_logger_construction},
            {"values": check_values, "resumed": check_resumed, "changes nothing": check_changes_nothing},
        ),
        CallbackTrial.kind: Promises(
            {"declaration": check_plugin_declaration, "calls": check_calls},
            {"changes": check_changes, "state": check_callback_state},
        ),
    }
)
"""The promises of every kind of plugin: "block", "optimizer", and so on."""
_OF_CLASSES: Mapping[str, Any] = {"inverse": Reversible, "one evaluation": AdditiveCoupling | TwoFunctionCoupling}
"""The promises that only some blocks make, with their base classes."""


def promises_of(trial: AnyTrial) -> tuple[str, ...]:
    """Return the names of the promises that apply: only reversible blocks have an inverse."""
    names = tuple(PROMISES[trial.kind].all)
    if not isinstance(trial, Trial):
        return names
    return tuple(name for name in names if issubclass(trial.block_class, _OF_CLASSES.get(name, Block)))


def check_promise(trial: AnyTrial, name: str) -> None:
    """Check one promise.

    Raises:
        BrokenPromise: it is broken, or the plugin's code raised an exception.
    """
    try:
        PROMISES[trial.kind].all[name](trial)
    except (KeyboardInterrupt, BrokenPromise):
        raise
    except PluginError as error:
        raise BrokenPromise(name, "; ".join(problem.message for problem in error.problems), "") from error
    except BaseException as error:
        found = f"it raised {type(error).__name__} at {raised_at(error)}: {error}"
        raise BrokenPromise(name, found, f"see that line; it was tried with {trial.about}") from error


def examine(trial: AnyTrial, *, leave_out: Collection[str] = ()) -> Report:
    """Check all promises that apply, and return their outcomes.

    Args:
        trial: a plugin with options, and what it needs to be tried.
        leave_out: names of promises that the plugin does not make.

    Raises:
        ValueError: `leave_out` names no promise of the kind.
    """
    expect_promises(trial, leave_out)
    names = promises_of(trial)
    foundations = PROMISES[trial.kind].foundations
    outcomes = []
    fallen = False
    for name in names:
        if fallen or name in leave_out:
            outcomes.append(Outcome(promise=name, status="not checked"))
            continue
        outcomes.append(_outcome(trial, name))
        fallen = name in foundations and outcomes[-1].status == "broken"
    return Report(kind=trial.kind, name=trial.name, trial=trial.about, outcomes=outcomes)


def expect_promises(trial: AnyTrial, names: Collection[str]) -> None:
    """Raise ValueError where a name is that of no promise of the trial's kind."""
    known = PROMISES[trial.kind].all
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"no promise is called {', '.join(unknown)}; there are {', '.join(known)}")


def conclude(report: Report) -> Report:
    """Return a report without broken promises.

    Raises:
        BrokenPromises: there are some.
    """
    if not report.kept:
        raise BrokenPromises(report)
    return report


def _outcome(trial: AnyTrial, name: str) -> Outcome:
    try:
        check_promise(trial, name)
    except BrokenPromise as broken:
        return Outcome(promise=name, status="broken", found=broken.found, remedy=broken.remedy)
    return Outcome(promise=name, status="kept")


def examine_all(trials: Sequence[AnyTrial]) -> tuple[Report, ...]:
    """Check all promises of several trials."""
    return tuple(examine(trial) for trial in trials)
