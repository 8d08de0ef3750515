"""Checks of what training relies on, for the tests of a package of plugins, and for `petra-graph check`.

    @parametrize_with_checks(Trial.of(MyBlock, inputs=[(8, 6, 6), (8, 6, 6)], options={"kernel": 3}))
    def test_a_promise(check):
        check()

A block goes through the executor's own runners, so that these checks accept exactly what training accepts: three micro-batches
forward, then back in the same order, as in a stage of depth 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from petra_graph.testing.block_checks import Trial, tokens
from petra_graph.testing.other_checks import DataSetTrial, LossTrial, OptimizerTrial
from petra_graph.testing.promises import AnyTrial, Outcome, outcome_of

if TYPE_CHECKING:
    import pytest

__all__ = [
    "TRIALS", "AnyTrial", "Check", "DataSetTrial", "LossTrial", "OptimizerTrial", "Outcome", "Trial", "examine", "parametrize_with_checks",
    "tokens",
]  # fmt: skip
Check = Callable[[], None]
"""What a test is given."""
TRIALS: dict[str, type[AnyTrial]] = {one.kind.short: one for one in (Trial, OptimizerTrial, LossTrial, DataSetTrial)}
"""By the names of kinds on the command line."""


def examine(trial: AnyTrial) -> list[Outcome]:
    """Make all checks of a trial."""
    return [outcome_of(check, trial) for check in trial.checks]


def parametrize_with_checks(*trials: AnyTrial) -> pytest.MarkDecorator:
    """Return a decorator for a test function with the argument `check`, which it calls: a test for each check of each trial."""
    import pytest

    cases = [partial(check, trial) for trial in trials for check in trial.checks]
    plugins = [one.args[0].plugin.name.rpartition(":")[2] for one in cases]
    names = [f"{name}-{one.func.__name__.removeprefix('check_')}" for name, one in zip(plugins, cases, strict=True)]
    return pytest.mark.parametrize("check", cases, ids=names)
