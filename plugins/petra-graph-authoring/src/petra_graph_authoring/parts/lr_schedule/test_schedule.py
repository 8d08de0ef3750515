from petra_graph_conformance import LrScheduleTrial, parametrize_with_checks

from petra_graph_examples.schedule import inverse_root


@parametrize_with_checks(LrScheduleTrial.of(inverse_root))
def test_a_promise(check):
    check()
