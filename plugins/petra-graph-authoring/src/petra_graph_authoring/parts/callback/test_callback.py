from petra_graph_conformance import CallbackTrial, parametrize_with_checks

from petra_graph_examples.callback import TimeLimit


@parametrize_with_checks(CallbackTrial.of(TimeLimit, {"seconds": 60.0}))
def test_a_promise(check):
    check()
