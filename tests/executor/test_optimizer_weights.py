"""Forwards and backwards at weights that an optimizer gives: used where they should be, and gone afterwards. Formulas are petra-graph-studies'."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import contextmanager

import pytest

from petra_graph.executor.stage import StageObserver
from tests.support.pipelines import CHAIN, GRAPHS, SHAPES, batches, pipeline, relative_error

METHODS = {"predicted_weights": {"predict": True}, "earlier_weights": {"correct_discrepancy": True}}


class Stores(StageObserver):
    """Gives an optimizer that corrects the discrepancy the weights of the forward themselves."""

    def __init__(self, updater):
        self.parameters = updater.parameters
        self.versions = [self.values()]
        updater.optimizer.earlier_weights = lambda delay: [
            (own, value.clone()) for own, value in zip(self.parameters, self.versions[-1 - delay], strict=True)
        ]

    def values(self):
        return [one.detach().clone() for one in self.parameters]

    @contextmanager
    def update(self):
        yield
        self.versions.append(self.values())


@pytest.mark.parametrize(("graph", "accumulation"), [("revnet", 1), ("skip", 2)])
def test_with_a_perfect_estimate_the_training_is_that_of_stored_weights(graph, accumulation):
    """Reconstruction, recomputation and both derivatives use the estimate: then PETRA is PipeDream, up to rounding."""
    how = {"schedule": "lockstep", "accumulation": accumulation}
    data = batches(SHAPES[graph], 16)
    stored = pipeline(GRAPHS[graph], SHAPES[graph], method="pipedream", **how)
    estimated = pipeline(GRAPHS[graph], SHAPES[graph], correct_discrepancy=True, **how)
    for executor in estimated.executors:
        if executor.updater.parameters:
            executor.observe(Stores(executor.updater))
    uncorrected = pipeline(GRAPHS[graph], SHAPES[graph], **how)
    for one in (stored, estimated, uncorrected):
        one.train(data)
    assert relative_error(estimated.parameters(), stored.parameters()) < 1e-10
    assert relative_error(uncorrected.parameters(), stored.parameters()) > 1e-6


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("k", "depths"), [(1, (5, 4, 3, 2, 1)), (3, (6, 4, 3, 2, 1))])
def test_each_delay_is_asked_for_once_between_two_updates(k, depths, method):
    built = pipeline(CHAIN, (8,), schedule=depths, accumulation=k, **METHODS[method])
    updater = built.executors[0].updater
    ask, asked = getattr(updater.optimizer, method), defaultdict(Counter)

    def counted(delay):
        asked[updater.updates][delay] += 1
        return ask(delay)

    setattr(updater.optimizer, method, counted)
    built.train(batches((8,), 8 * k))
    assert len(asked) > 3
    assert all(set(counts.values()) == {1} for counts in asked.values())
