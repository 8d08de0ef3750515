from petra_graph_conformance import LoggerTrial, parametrize_with_checks

from petra_graph_examples.logger import TextLines


@parametrize_with_checks(LoggerTrial.of(TextLines))
def test_a_promise(check):
    check()
