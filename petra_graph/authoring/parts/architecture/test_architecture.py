from petra_graph.testing import ArchitectureTrial, parametrize_with_checks

from petra_graph_examples.declared import TANH_NET


@parametrize_with_checks(ArchitectureTrial.of(TANH_NET))
def test_a_promise(check):
    check()
