"""All promises of a plugin at once.

Decision: the promises on which others rest (declaration, construction, shapes) come first, and nothing is checked after a
broken one; the others are all checked, even where some are broken, so that an author sees the whole list.

Decision: what applies to a plugin is known before anything runs, so that each promise can be a test of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from petra_graph.errors import PluginError, RunFailed
from petra_graph.kinds.author_code import AUTHOR, MEND, raised_at
from petra_graph.kinds.shared_settings import SET_WITHIN, put_back, settings
from petra_graph_conformance.all_checks import checks_of
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.plugin_trial import AnyTrial, StageTrial
from petra_graph_conformance.promise import Promise, When
from petra_graph_conformance.promise_report import Outcome, Report, Status

_CHANNELS_LAST = (
    "write flatten or reshape instead of view: images are channels-last in memory, "
    'unless precision.memory_format = "contiguous"'
)


def check_promise(trial: AnyTrial, promise: Promise) -> None:
    """Check one promise; of a plugin that knows the delay of its stage, in each stage of the trial.

    Raises:
        BrokenPromise: it is broken, or the plugin's code raised an exception.
    """
    if not isinstance(trial, StageTrial):
        _check(trial, promise)
        return
    for case in trial.cases:
        try:
            _check(case, promise)
        except BrokenPromise as broken:
            if not case.place or case.place in broken.remedy:
                raise
            raise BrokenPromise(promise.name, f"{broken.found} ({case.place})", broken.remedy) from broken.__cause__


def _check(trial: AnyTrial, promise: Promise) -> None:
    """Check a promise of one case; whichever it is, settings that all code shares stay as they are."""
    name, before = promise.name, settings()
    try:
        _check_alone(trial, promise)
    finally:
        changed = put_back(before)
    if changed:
        raise BrokenPromise(name, f"after its calls, {changed}", SET_WITHIN)


def _check_alone(trial: AnyTrial, promise: Promise) -> None:
    name = promise.name
    try:
        promise.check(trial)
    except (KeyboardInterrupt, BrokenPromise):
        raise
    except (PluginError, RunFailed) as error:
        hint = error.problems[0].hint
        found = "; ".join(problem.message for problem in error.problems)
        raise BrokenPromise(name, found, "" if hint in {AUTHOR, MEND} else hint) from error
    except BaseException as error:
        at = raised_at(error)
        found = f"it raised {type(error).__name__}{at and f' at {at}'}: {error}"
        hint = f"see that line; it was tried with {trial.about}"
        raise BrokenPromise(
            name, found, _CHANNELS_LAST if "view size is not compatible" in str(error) else hint
        ) from error


def examine(
    trial: AnyTrial,
    when: When = "kit",
    *,
    leave_out: Collection[str] = (),
    only: Collection[str] = (),
    until: float = math.inf,
) -> Report:
    """Check all promises that apply, and return their outcomes.

    Args:
        trial: a plugin with options, and what it needs to be tried.
        when: only the promises that are asked then.
        leave_out: names of promises that are not asked.
        only: names of those that are asked; (): all.
        until: the value of `time.monotonic` after which no further one is asked.
    """
    outcomes: list[Outcome] = []
    fallen = False
    for promise in checks_of(trial.kind).asked(when):
        if not promise.applies(trial) or (only and promise.name not in only):
            continue
        if fallen or promise.name in leave_out or time.monotonic() > until:
            outcomes.append(Outcome(promise=promise.name, status="not checked"))
            continue
        outcomes.append(_outcome(trial, promise))
        fallen = promise.foundation and outcomes[-1].status == "broken"
    return Report(kind=trial.kind.noun, name=trial.name, trial=trial.about, outcomes=outcomes)


def _outcome(trial: AnyTrial, promise: Promise) -> Outcome:
    try:
        check_promise(trial, promise)
    except BrokenPromise as broken:
        status: Status = "doubtful" if promise.doubt else "broken"
        return Outcome(promise=promise.name, status=status, found=broken.found, remedy=broken.remedy)
    return Outcome(promise=promise.name, status="kept")
