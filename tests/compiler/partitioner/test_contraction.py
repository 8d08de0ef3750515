"""Items that are kept together: the cuts of the smaller problem are those cuts of the whole one that have them in one stage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from petra_graph.compiler.partitioner.contraction import contracted
from petra_graph.compiler.partitioner.interval_costs import cut_costs
from petra_graph.compiler.partitioner.problem import Item
from tests.support.examples import examples
from tests.support.partition_problems import all_cuts, chain, problems


def test_a_group_is_one_item_with_its_first_name():
    problem = contracted(chain([1.0, 2.0, 4.0, 8.0], 2), [("n1", "n2")])
    assert [item.name for item in problem.items] == ["n0", "n1", "n3"]
    assert [device.item_seconds for device in problem.devices] == [(1.0, 6.0, 8.0)] * 2
    assert [(edge.producer, edge.consumer) for edge in problem.edges] == [("n0", "n1"), ("n1", "n3")]


def test_a_group_stores_one_input_where_its_items_join_and_does_one_operation_at_a_time():
    items = [
        Item(name=f"n{place}", buffer_bytes=place + 1, working_bytes=9 - place, joins=place > 0) for place in range(4)
    ]
    found = contracted(chain([0.0] * 4, 1, items=items), [("n1", "n2", "n3")]).items[1]
    assert found == Item(name="n1", buffer_bytes=2, working_bytes=8)


def test_what_an_item_reads_comes_before_it():
    """n1 is read by the group's second item alone."""
    problem = chain([1.0, 2.0, 4.0, 8.0], 1)
    problem.edges = [problem.edges[1], problem.edges[2]]  # n1 -> n2 -> n3, n0 alone
    assert [item.name for item in contracted(problem, [("n0", "n2")]).items] == ["n1", "n0", "n3"]


@examples(50)
@given(problems(most=8, limits=False), st.data())
def test_ticks_of_a_chain_are_those_of_the_whole_problem(problem, data):
    count = len(problem.items)
    first = data.draw(st.integers(0, count - 1))
    group = [f"n{place}" for place in range(first, data.draw(st.integers(first, count - 1)) + 1)]
    if count - len(group) + 1 < problem.stage_count:
        return
    small = contracted(problem, [group] if len(group) > 1 else [])
    for costs in all_cuts(small):
        named = (
            [one for name in stage.items for one in (group if name == group[0] else [name])] for stage in costs.stages
        )
        whole = [[problem.index[name] for name in names] for names in named]
        assert cut_costs(problem, whole, [stage.device for stage in costs.stages]).tick_seconds == costs.tick_seconds
