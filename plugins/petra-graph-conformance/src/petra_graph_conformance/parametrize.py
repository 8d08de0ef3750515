"""A pytest test for each promise, so that a plugin's own test run names the promises one by one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from petra_graph_conformance.all_checks import checks_of
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.examined_promises import check_promise
from petra_graph_conformance.plugin_trial import AnyTrial
from petra_graph_conformance.promise import Promise

if TYPE_CHECKING:
    import pytest


def parametrize_with_checks(
    *trials: AnyTrial, expected_failed_checks: Mapping[str, str] | None = None
) -> pytest.MarkDecorator:
    """Return a decorator for a test function with the argument `check`, which it calls: one test for each promise.

        @parametrize_with_checks(Trial.of(MY_BLOCK, inputs=[(8,), (8,)]), OptimizerTrial.of(MY_OPTIMIZER))
        def test_promise(check):
            check()

    Args:
        trials: the plugins, each with options and what it needs to be tried.
        expected_failed_checks: the promises that none of them makes, each with the reason. The tests of these must fail: a
            promise that is kept after all fails its test, so that the list stays true.

    What breaks a promise and may be meant is a warning.

    Raises:
        ValueError: a name in `expected_failed_checks` is not that of a promise.
    """
    import pytest

    def checked(trial: AnyTrial, promise: Promise) -> None:
        try:
            check_promise(trial, promise)
        except BrokenPromise as broken:
            if not promise.doubt or promise.name in expected:
                raise
            warnings.warn(f"{trial.name}: {broken}", stacklevel=2)

    expected = expected_failed_checks or {}
    cases = []
    for trial in trials:
        asked = checks_of(trial.kind).asked("kit")
        if unknown := sorted(expected.keys() - {promise.name for promise in asked}):
            names = ", ".join(promise.name for promise in asked)
            raise ValueError(f"no promise is called {', '.join(unknown)}; there are {names}")
        for promise in asked:
            if not promise.applies(trial):
                continue
            name = promise.name
            marks = (
                [pytest.mark.xfail(reason=expected[name], raises=BrokenPromise, strict=True)]
                if name in expected
                else []
            )
            cases.append(pytest.param(partial(checked, trial, promise), id=f"{trial.name}-{name}", marks=marks))
    return pytest.mark.parametrize("check", cases)
