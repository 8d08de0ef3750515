"""Checks of what training relies on, for the tests of a package of plugins, and for `petra-graph check`.

    from petra_graph.testing import OptimizerTrial, Trial, parametrize_with_checks

    @parametrize_with_checks(
        Trial.of(MyBlock, inputs=[(8, 6, 6), (8, 6, 6)], options={"kernel": 3}),
        OptimizerTrial.of(my_optimizer, {"lr": 0.1}),
    )
    def test_a_promise(check):
        check()

A block goes through the executor's own runners, so that these checks accept exactly what training accepts: three micro-batches
forward, then back in the same order, as in a stage of depth 3. Its parameters are moved off their initial values, because a last layer
that starts at zero hides every mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from petra_graph.testing import promises
from petra_graph.testing.block_checks import BLOCK_CHECKS
from petra_graph.testing.block_checks import Trial as Trial
from petra_graph.testing.block_checks import tokens as tokens
from petra_graph.testing.other_checks import CallbackTrial as CallbackTrial
from petra_graph.testing.other_checks import DataSetTrial as DataSetTrial
from petra_graph.testing.other_checks import LossTrial as LossTrial
from petra_graph.testing.other_checks import OptimizerTrial as OptimizerTrial
from petra_graph.testing.other_checks import check_checkpoint, check_mean_over_samples, check_resumed, check_samples
from petra_graph.testing.promises import AnyTrial as AnyTrial
from petra_graph.testing.promises import BrokenPromise as BrokenPromise
from petra_graph.testing.promises import Outcome as Outcome
from petra_graph.testing.promises import name_of, outcome_of

if TYPE_CHECKING:
    import pytest

Check = Callable[[], None]
"""What a test is given."""
CHECKS: Mapping[type, Sequence[promises.Check]] = {
    Trial: BLOCK_CHECKS,
    OptimizerTrial: (check_checkpoint,),
    LossTrial: (check_mean_over_samples,),
    DataSetTrial: (check_samples,),
    CallbackTrial: (check_resumed,),
}
"""By the class of trials, in the order in which they are made."""


def examine(trial: AnyTrial) -> list[Outcome]:
    """Make all checks of a trial."""
    return [outcome_of(check, trial) for check in CHECKS[type(trial)]]


def parametrize_with_checks(*trials: AnyTrial) -> pytest.MarkDecorator:
    """Return a decorator for a test function with the argument `check`, which it calls: a test for each check of each trial.

    Args:
        trials: plugins with options, and what they read.
    """
    import pytest

    def made(check: promises.Check, trial: AnyTrial) -> None:
        try:
            check(trial)
        except promises.NotTried as reason:
            pytest.skip(str(reason))

    cases = [
        pytest.param(partial(made, check, trial), id=f"{trial.plugin.name.rpartition(':')[2]}-{name_of(check)}")
        for trial in trials
        for check in CHECKS[type(trial)]
    ]
    return pytest.mark.parametrize("check", cases)
