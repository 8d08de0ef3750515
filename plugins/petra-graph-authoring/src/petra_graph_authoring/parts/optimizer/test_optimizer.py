from petra_graph_conformance import OptimizerTrial, parametrize_with_checks

from petra_graph_examples.declared import SignDescent


@parametrize_with_checks(OptimizerTrial.of(SignDescent, {"weight_decay": 0.1}))
def test_a_promise(check):
    check()
