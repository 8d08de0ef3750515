from petra_graph.testing import LossTrial, parametrize_with_checks

from petra_graph_examples.declared import WIDE_MARGIN


@parametrize_with_checks(LossTrial.of(WIDE_MARGIN, {"margin": 0.5}, output=(10,)))
def test_a_promise(check):
    check()
