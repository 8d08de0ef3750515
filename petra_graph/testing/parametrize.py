"""A pytest test for each promise, so that a plugin's own test run names the promises one by one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from petra_graph.kinds.broken_promise import BrokenPromise
from petra_graph.kinds.examined_promises import check_promise, expect_promises, promises_of
from petra_graph.kinds.plugin_trial import AnyTrial

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

    Raises:
        ValueError: a name in `expected_failed_checks` is not that of a promise.
    """
    import pytest

    expected = expected_failed_checks or {}
    cases = []
    for trial in trials:
        expect_promises(trial, expected)
        for name in promises_of(trial):
            marks = (
                [pytest.mark.xfail(reason=expected[name], raises=BrokenPromise, strict=True)]
                if name in expected
                else []
            )
            cases.append(pytest.param(partial(check_promise, trial, name), id=f"{trial.name}-{name}", marks=marks))
    return pytest.mark.parametrize("check", cases)
