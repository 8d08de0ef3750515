"""The cases on which promises of all methods are tried leave out nothing that could differ."""

from __future__ import annotations

from itertools import combinations, product
from typing import get_args

import pytest
import torch

from petra_graph.program.method import METHODS
from petra_graph.spec.model import Keeps
from tests.support.method_cases import POINTS, MethodCase, cases, chosen, computation, programs
from tests.support.pairwise import pairs, pairwise, pairwise_product, thinned
from tests.support.pipelines import GRAPHS, SHAPES, batches

ALL = cases(lambda _: True, stages=("one a node", "one a pair", "one"), accumulations=(1, 3))


def test_every_pair_of_a_product_is_chosen():
    factors = {"a": (1, 2, 3), "b": ("x", "y"), "c": (True, False), "d": (0, 1, 2)}
    rows = pairwise_product(**factors)
    for one, other in combinations(range(4), 2):
        values = list(factors.values())
        assert {(row[one], row[other]) for row in rows} == set(product(values[one], values[other]))
    assert len(rows) <= 12, "the product has 36 rows"


def test_every_value_of_a_product_is_chosen():
    rows = list(product((1, 2, 3), ("x", "y"), (True, False)))
    chosen_rows = pairwise(rows, lambda row: dict(zip("abc", row, strict=True)), together=1)
    assert [set(values) for values in zip(*chosen_rows, strict=True)] == [{1, 2, 3}, {"x", "y"}, {True, False}]
    assert len(chosen_rows) == 3


def test_cases_that_are_not_usual_are_marked():
    cases = [(1, "x"), (2, "y"), (3, "z")]
    parameters = thinned(cases, cases[1:2])
    assert [one.values for one in parameters] == cases
    assert [[mark.name for mark in one.marks] for one in parameters] == [["thorough"], [], ["thorough"]]


def test_every_pair_that_any_case_has_is_chosen():
    def covered(some):
        return frozenset().union(*(pairs(case.factors) for case in some))

    assert covered(chosen(ALL)) == covered(ALL)
    assert len(chosen(ALL)) < len(ALL) / 8


def test_every_method_is_a_point_under_each_of_its_schedules():
    found = {(name, point.spec.schedule) for point in POINTS for name in point.names}
    assert found == {
        (name, schedule) for name, method in METHODS.items() for schedule in method.schedules if schedule != "auto"
    }


def test_every_way_to_keep_an_input_is_a_point():
    found = {(point.method.reversible, point.method.backward, point.method.flush) for point in POINTS}
    assert found == {
        (keeps, backward, flush)
        for keeps in get_args(Keeps)
        for backward, flush in (("current", "drain"), ("stored", "drain"), ("current", "window"))
    }


@pytest.mark.parametrize("graph", GRAPHS)
def test_programs_are_compared_as_pipelines_run_them(graph):
    for case in (case for case in chosen(ALL) if case.graph == graph):
        assert computation(case.built().programs) == computation(programs(case))


def made(schedule, stages):
    (point,) = (
        point
        for point in POINTS
        if "pipedream" in point.names and (point.spec.schedule, point.spec.last_stage) == (schedule, "as-others")
    )
    return MethodCase(point=point, graph="chain", stages=stages, accumulation=1)


@pytest.mark.parametrize(("stages", "equal"), [("one", True), ("one a pair", False)])
def test_cases_are_one_where_the_bits_of_a_training_are(stages, equal):
    one, other = made("lockstep", stages), made("1f1b", stages)
    assert (computation(programs(one)) == computation(programs(other))) is equal
    trained = [case.built() for case in (one, other)]
    for built in trained:
        built.train(batches(SHAPES["chain"], 12))
    expected = trained[0].parameters()
    assert all(torch.equal(value, expected[key]) for key, value in trained[1].parameters().items()) is equal
