from petra_graph.testing import LrScheduleTrial, parametrize_with_checks

from petra_graph_examples.declared import INVERSE_ROOT


@parametrize_with_checks(LrScheduleTrial.of(INVERSE_ROOT))
def test_a_promise(check):
    check()
