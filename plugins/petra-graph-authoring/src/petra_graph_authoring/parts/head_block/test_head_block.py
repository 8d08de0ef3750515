from petra_graph_conformance import Trial, parametrize_with_checks

from petra_graph_examples.declared import MeanHead


@parametrize_with_checks(Trial.of(MeanHead, inputs=[(4, 6, 6), (4, 6, 6)], options={"outputs": 10}))
def test_a_promise(check):
    check()
