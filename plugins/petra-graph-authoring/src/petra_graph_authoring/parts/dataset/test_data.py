from petra_graph_conformance import DataSetTrial, parametrize_with_checks

from petra_graph_examples.declared import NoisyStripes


@parametrize_with_checks(DataSetTrial.of(NoisyStripes, {"samples": 32}))
def test_a_promise(check):
    check()
