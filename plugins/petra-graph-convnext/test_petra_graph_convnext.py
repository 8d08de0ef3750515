"""The block keeps what training relies on."""

from petra_graph_convnext import RevConvNext

from petra_graph.testing import Check, Trial, parametrize_with_checks

STREAMS = [(8, 6, 6), (8, 6, 6)]


@parametrize_with_checks(Trial.of(RevConvNext, STREAMS), Trial.of(RevConvNext, STREAMS, {"kernel": 3, "dropout": 0.3}))
def test_a_promise(check: Check) -> None:
    check()
