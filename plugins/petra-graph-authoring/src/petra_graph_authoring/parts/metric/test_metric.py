from petra_graph_conformance import MetricTrial, parametrize_with_checks

from petra_graph_examples.declared import WorstClass


@parametrize_with_checks(MetricTrial.of(WorstClass, {"least": 2}, output=(10,)))
def test_a_promise(check):
    check()
