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

from petra_graph.testing.block_trial import BrokenPromise as BrokenPromise
from petra_graph.testing.block_trial import Trial as Trial
from petra_graph.testing.block_trial import tokens as tokens
from petra_graph.testing.examination import Check as Check
from petra_graph.testing.examination import examine as examine
from petra_graph.testing.examination import parametrize_with_checks as parametrize_with_checks
from petra_graph.testing.other_checks import DataSetTrial as DataSetTrial
from petra_graph.testing.other_checks import LossTrial as LossTrial
from petra_graph.testing.other_checks import OptimizerTrial as OptimizerTrial
