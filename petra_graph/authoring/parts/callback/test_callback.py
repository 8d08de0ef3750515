from petra_graph.testing import CallbackTrial, parametrize_with_checks

from petra_graph_examples.declared import TIME_LIMIT


@parametrize_with_checks(CallbackTrial.of(TIME_LIMIT, {"seconds": 60.0}))
def test_a_promise(check):
    check()
