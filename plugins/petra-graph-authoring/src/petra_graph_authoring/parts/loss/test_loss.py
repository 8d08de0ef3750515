from petra_graph_conformance import LossTrial, parametrize_with_checks

from petra_graph_examples.declared import WideMargin


@parametrize_with_checks(LossTrial.of(WideMargin, {"margin": 0.5}, output=(10,)))
def test_a_promise(check):
    check()
