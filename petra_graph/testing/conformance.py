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
from petra_graph.testing.any_trial import AnyTrial
from petra_graph.testing.backward import check_autocast, check_gradients, check_inverse, check_one_evaluation
from petra_graph.testing.broken_promise import BrokenPromise, author_line
from petra_graph.testing.construction import check_construction
from petra_graph.testing.declarations import check_declaration
from petra_graph.testing.evaluation import check_evaluation_mode, check_randomness, check_recomputation
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
    except BrokenPromise:
        raise
    except Exception as error:
        found = f"it raised {type(error).__name__} at {author_line(error)}: {error}"
        raise BrokenPromise(name, found, "") from error


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
