"""All promises of a plugin at once.

Decision: the promises on which others rest (declaration, construction, shapes) come first, and nothing is checked after a
broken one; the others are all checked, even where some are broken, so that an author sees the whole list.

Decision: what applies to a plugin is known before anything runs, so that each promise can be a test of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType

from petra_graph.errors import PluginError
from petra_graph.kinds.all_kinds import KINDS
from petra_graph.kinds.author_code import raised_at
from petra_graph.kinds.broken_promise import BrokenPromise
from petra_graph.kinds.plugin_kind import Promise, When
from petra_graph.kinds.plugin_trial import AnyTrial, StageTrial
from petra_graph.kinds.promise_report import BrokenPromises, Outcome, Report, Status

PROMISES = MappingProxyType({kind.noun: tuple(promise.name for promise in kind.asked("kit")) for kind in KINDS})
"""The names of the promises of every kind of plugin, in the order in which they are checked: "block", "optimizer", and so on."""


_CHANNELS_LAST = (
    "write flatten or reshape instead of view: images are channels-last in memory, "
    'unless precision.memory_format = "contiguous"'
)


def promises_of(trial: AnyTrial) -> tuple[str, ...]:
    """Return the names of the promises that apply: only reversible blocks have an inverse."""
    return tuple(promise.name for promise in trial.kind.asked("kit") if promise.applies(trial))


def check_promise(trial: AnyTrial, name: str) -> None:
    """Check one promise; of a plugin that knows the delay of its stage, in each stage of the trial.

    Raises:
        BrokenPromise: it is broken, or the plugin's code raised an exception.
    """
    (promise,) = (promise for promise in trial.kind.promises if promise.name == name)
    if not isinstance(trial, StageTrial):
        _check(trial, promise)
        return
    for case in trial.cases:
        try:
            _check(case, promise)
        except BrokenPromise as broken:
            if not case.place or case.place in broken.remedy:
                raise
            raise BrokenPromise(name, f"{broken.found} ({case.place})", broken.remedy) from broken.__cause__


def _check(trial: AnyTrial, promise: Promise) -> None:
    name = promise.name
    try:
        promise.function(trial)
    except (KeyboardInterrupt, BrokenPromise):
        raise
    except PluginError as error:
        raise BrokenPromise(name, "; ".join(problem.message for problem in error.problems), "") from error
    except BaseException as error:
        at = raised_at(error)
        found = f"it raised {type(error).__name__}{at and f' at {at}'}: {error}"
        hint = f"see that line; it was tried with {trial.about}"
        raise BrokenPromise(
            name, found, _CHANNELS_LAST if "view size is not compatible" in str(error) else hint
        ) from error


def examine(trial: AnyTrial, *, leave_out: Collection[str] = (), when: When = "kit") -> Report:
    """Check all promises that apply, and return their outcomes.

    Args:
        trial: a plugin with options, and what it needs to be tried.
        leave_out: names of promises that the plugin does not make.
        when: only the promises that are asked then.

    Raises:
        ValueError: a name in `leave_out` is not that of a promise of the kind.
    """
    expect_promises(trial, leave_out)
    outcomes: list[Outcome] = []
    fallen = False
    for promise in trial.kind.asked("kit"):
        if not promise.applies(trial):
            continue
        if fallen or promise.name in leave_out or getattr(promise, when) is None:
            outcomes.append(Outcome(promise=promise.name, status="not checked"))
            continue
        outcomes.append(_outcome(trial, promise))
        fallen = promise.foundation and outcomes[-1].status == "broken"
    return Report(kind=trial.kind.noun, name=trial.name, trial=trial.about, outcomes=outcomes)


def expect_promises(trial: AnyTrial, names: Collection[str]) -> None:
    """Raise ValueError where a name is not that of a promise of the trial's kind."""
    known = [promise.name for promise in trial.kind.asked("kit")]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"no promise is called {', '.join(unknown)}; there are {', '.join(known)}")


def conclude(report: Report) -> Report:
    """Return a report without broken promises.

    Raises:
        BrokenPromises: a promise is broken.
    """
    if not report.kept:
        raise BrokenPromises(report)
    return report


def _outcome(trial: AnyTrial, promise: Promise) -> Outcome:
    try:
        check_promise(trial, promise.name)
    except BrokenPromise as broken:
        status: Status = "doubtful" if promise.doubt else "broken"
        return Outcome(promise=promise.name, status=status, found=broken.found, remedy=broken.remedy)
    return Outcome(promise=promise.name, status="kept")
