from petra_graph_conformance import ArchitectureTrial, parametrize_with_checks

from petra_graph_examples.declared import tanh_net


@parametrize_with_checks(ArchitectureTrial.of(tanh_net))
def test_a_promise(check):
    check()
