from petra_graph.testing import DataSetTrial, parametrize_with_checks

from petra_graph_examples.declared import NOISY_STRIPES


@parametrize_with_checks(DataSetTrial.of(NOISY_STRIPES, {"samples": 32}))
def test_a_promise(check):
    check()
