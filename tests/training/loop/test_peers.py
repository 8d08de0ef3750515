"""How far a training came, and how fast it is."""

from __future__ import annotations

import pytest

from petra_graph.training.loop.peers import Progress


@pytest.mark.parametrize(
    ("first", "rate"),
    [((0, 0.0), 10.0), ((20, 4.0), 80 / 6.0), ((51, 9.0), 10.0)],
    ids=["not noted", "behind the first", "most are first"],
)
def test_a_rate_leaves_out_the_start_of_libraries(first, rate):
    """A GPU's libraries took a second to start, of the two that 60 micro-batches took, and so a true plan seemed 1.4 times too fast."""
    assert Progress(micro_batches=100, seconds=10.0, first=first).micro_batches_per_second == pytest.approx(rate)


def test_nothing_trained_has_no_rate():
    assert Progress().micro_batches_per_second is None
