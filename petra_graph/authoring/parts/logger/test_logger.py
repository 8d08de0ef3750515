from petra_graph.testing import LoggerTrial, parametrize_with_checks

from petra_graph_examples.declared import TEXT_LINES


@parametrize_with_checks(LoggerTrial.of(TEXT_LINES))
def test_a_promise(check):
    check()
