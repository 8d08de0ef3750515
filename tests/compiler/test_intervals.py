"""The dynamic program over intervals against all cuts of one order, and what its costs are made of."""

from __future__ import annotations

from itertools import combinations, pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.cuts import CutSpace
from petra_graph.compiler.node_table import node_table
from petra_graph.compiler.proposals import Intervals, Proposals, best_bounds, node_orders
from tests.support.costs import costs
from tests.support.examples import examples
from tests.support.pipelines import BRANCHES, SKIP
from tests.support.settings import setting

NODES = 5


def tables(count):
    """Small integers, with ties, for every device and interval; infinite where a device may not hold it."""
    entry = st.sampled_from([0.0, 1.0, 2.0, 3.0, np.inf])
    one = st.lists(entry, min_size=(NODES + 1) ** 2, max_size=(NODES + 1) ** 2)
    shaped = one.map(
        lambda values: np.where(np.tri(NODES + 1, dtype=bool), np.inf, np.reshape(values, (NODES + 1,) * 2))
    )
    return st.lists(shaped, min_size=count, max_size=count)


@examples(60)
@given(st.data(), st.integers(1, 4))
def test_criteria_are_least_one_after_another(data, places):
    first, second, summed = (data.draw(tables(places)) for _ in range(3))
    found = best_bounds(places, [first.__getitem__, second.__getitem__], summed.__getitem__)

    def values(inner):
        spans = list(enumerate(pairwise([0, *inner, NODES])))
        largest = [max(table[at][span] for at, span in spans) for table in (first, second)]
        return (*largest, sum(summed[at][span] for at, span in spans))

    best = min(map(values, combinations(range(1, NODES), places - 1)))
    if np.inf in best[:2]:
        assert found is None
    elif np.inf not in best:
        assert found is not None
        assert (*found[0], values(found[1][1:-1])[-1]) == best


@pytest.mark.parametrize("nodes", [SKIP, BRANCHES])
def test_messages_of_intervals_are_those_of_the_edges_that_cross_their_ends(nodes):
    table = node_table(setting(2, nodes=nodes, table=costs(nodes, (8,))))
    count = len(table.nodes)
    (ahead, _), (leaving, back) = Intervals(table=table, order=range(count), ends=[True] * count).messages
    for a, b in combinations(range(count + 1), 2):
        inside = range(a, b)
        entering = [one for one in table.messages if one.producer < a and one.consumer in inside]
        after = [one for one in table.messages if one.producer in inside and one.consumer >= b]
        assert ahead[a, b] == sum(one.forward for one in entering)
        assert leaving[a, b] == sum(one.forward for one in after)
        assert back[a, b] == sum(one.backward for one in after)


def test_orders_have_what_is_kept_together_as_neighbours():
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)])
    orders = list(node_orders(graph, [[1, 3], [0], [2], [4], [5]]))
    assert len(orders) > 1
    for order in orders:
        position = {node: place for place, node in enumerate(order)}
        assert position[3] == position[1] + 1
        assert all(position[a] < position[b] for a, b in graph.edges)


def test_a_table_that_was_told_what_a_device_holds_proposes_something_else():
    inputs = setting(2)
    space = CutSpace(edges=[(node, node + 1) for node in range(4)], count=5, stages=2, kinds="aa", listed=True)
    proposals = Proposals(table=node_table(inputs), space=space)
    first = proposals.best((0, 1), limits=(10**9, 10**9))
    assert first is not None
    proposals.learn(first, [10**9 + 1, 0])
    second = proposals.best((0, 1), limits=(10**9, 10**9))
    assert second is not None
    assert second != first
