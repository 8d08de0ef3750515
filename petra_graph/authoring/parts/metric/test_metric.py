from petra_graph.testing import MetricTrial, parametrize_with_checks

from petra_graph_examples.declared import WORST_CLASS


@parametrize_with_checks(MetricTrial.of(WORST_CLASS, {"least": 2}, output=(10,)))
def test_a_promise(check):
    check()
