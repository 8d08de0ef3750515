"""A stage's observers see its operations side by side."""

from __future__ import annotations

from contextlib import contextmanager

from petra_graph.executor.stage_observer import StageObserver
from tests.support.pipelines import CHAIN, batches, pipeline


class Noting(StageObserver):
    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    @contextmanager
    def update(self):
        self.seen.append(f"{self.name} update")
        yield
        self.seen.append(f"{self.name} updated")

    def segment_backward(self, micro_batch, segment) -> None:
        self.seen.append(f"{self.name} backward {micro_batch}")


def test_a_second_observer_does_not_replace_the_first():
    """The averaging of gradients over replicas is one: a second one switched the all-reduce off, silently."""
    built = pipeline(CHAIN, (8,), schedule="sequential")
    seen: list[str] = []
    stage = built.executors[1]
    for name in ("first", "second"):
        stage.observe(Noting(name, seen))
    built.train(batches((8,), 1))
    assert seen == [
        "first backward 0",
        "second backward 0",
        "first update",
        "second update",
        "second updated",
        "first updated",
    ]
