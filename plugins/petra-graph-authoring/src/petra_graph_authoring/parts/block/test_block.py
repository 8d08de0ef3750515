from petra_graph_conformance import Trial, parametrize_with_checks

from petra_graph_examples.declared import RevTanh


@parametrize_with_checks(Trial.of(RevTanh, inputs=[(4, 6, 6), (4, 6, 6)], options={"activation": "sigmoid"}))
def test_a_promise(check):
    check()
