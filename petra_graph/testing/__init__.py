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

import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from petra_graph.measure.without_compiler import uncompiled
from petra_graph.testing import block_checks, other_checks
from petra_graph.testing.block_trial import BrokenPromise as BrokenPromise
from petra_graph.testing.block_trial import NotTried
from petra_graph.testing.block_trial import Trial as Trial
from petra_graph.testing.block_trial import tokens as tokens
from petra_graph.testing.other_checks import CallbackTrial as CallbackTrial
from petra_graph.testing.other_checks import DataSetTrial as DataSetTrial
from petra_graph.testing.other_checks import LossTrial as LossTrial
from petra_graph.testing.other_checks import OptimizerTrial as OptimizerTrial
from petra_graph.testing.other_checks import OtherTrial

if TYPE_CHECKING:
    import pytest

AnyTrial = Trial | OtherTrial
Check = Callable[[], None]
"""What a test is given."""
CHECKS: Mapping[type, Mapping[str, Callable[[Any], None]]] = {
    Trial: {
        "shapes": block_checks.check_shapes,
        "inverse": block_checks.check_inverse,
        "gradients": block_checks.check_gradients,
        "gradcheck": block_checks.check_gradcheck,
        "randomness": block_checks.check_randomness,
        "recomputation": block_checks.check_recomputation,
        "statistics": block_checks.check_statistics,
        "every parameter": block_checks.check_every_parameter,
        "precision": block_checks.check_precision,
        "autocast": block_checks.check_autocast,
        "evaluation": block_checks.check_evaluation,
        "state dictionary": block_checks.check_state_dict,
    },
    OptimizerTrial: {"checkpoint": other_checks.check_checkpoint},
    LossTrial: {"mean over samples": other_checks.check_mean},
    DataSetTrial: {"samples": other_checks.check_samples},
    CallbackTrial: {"resumed": other_checks.check_resumed},
}
"""By the class of trials, in the order in which they are made."""


@frozen
class Outcome:
    """Of one check."""

    check: str
    status: Literal["kept", "broken", "not tried"]
    found: str = ""


def outcome_of(check: Callable[[Any], None], name: str, trial: AnyTrial) -> Outcome:
    """Make one check; what a plugin's code raises breaks it."""
    try:
        with uncompiled():
            check(trial)
    except NotTried as reason:
        return Outcome(name, "not tried", str(reason))
    except BrokenPromise as broken:
        return Outcome(name, "broken", str(broken))
    except Exception as error:  # noqa: BLE001  code of a plugin may raise anything
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(name, "broken", f"it raised {type(error).__name__} at {at.filename}:{at.lineno}: {error}")
    return Outcome(name, "kept")


def examine(trial: AnyTrial) -> list[Outcome]:
    """Make all checks of a trial."""
    return [outcome_of(check, name, trial) for name, check in CHECKS[type(trial)].items()]


def parametrize_with_checks(*trials: AnyTrial) -> pytest.MarkDecorator:
    """Return a decorator for a test function with the argument `check`, which it calls: a test for each check of each trial.

    Args:
        trials: plugins with options, and what they read.
    """
    import pytest

    def made(check: Callable[[Any], None], trial: AnyTrial) -> None:
        try:
            with uncompiled():
                check(trial)
        except NotTried as reason:
            pytest.skip(str(reason))

    cases = [
        pytest.param(partial(made, check, trial), id=f"{trial.plugin.name.rpartition(':')[2]}-{name}")
        for trial in trials
        for name, check in CHECKS[type(trial)].items()
    ]
    return pytest.mark.parametrize("check", cases)
