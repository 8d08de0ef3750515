"""Depths and words of split backwards: the least at full throughput, against brute force over all of them."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from petra_graph.compiler.simulator.pipeline import Pipeline, StageSeconds
from petra_graph.compiler.simulator.split_orders import Orders, best_words, least_orders, with_orders
from petra_graph.compiler.simulator.steady_state import tick, unbounded_tick
from petra_graph.program.device_types import Link
from petra_graph.program.schedule import arrangements
from petra_graph.spec.model import Word
from tests.support.simulated_pipelines import part_seconds, split_chain, split_pipelines

TIGHT = 1e-9
PARTS = StageSeconds(forward=1, backward=3, reconstruct=1, input_gradient=1)
"""F, R, I and W take 1 each."""
HEAD = StageSeconds(forward=1, backward=2, input_gradient=1)
"""A head has no R."""


@pytest.mark.parametrize(("stages", "staleness"), [(4, 2), (8, 5), (16, 10)])
def test_equal_stages_need_two_thirds_of_the_staleness_of_1f1b(stages, staleness):
    found = least_orders(split_chain(stages, PARTS), tolerance=TIGHT)
    assert found.depths[0] - 1 == staleness
    assert tick(with_orders(split_chain(stages, PARTS), found)).seconds == 4


def test_three_stages_as_the_schedule_draws_them():
    model = split_chain(3, [PARTS, PARTS, HEAD])
    assert least_orders(model, tolerance=TIGHT).depths == (2, 2, 1)
    drawn = with_orders(model, Orders((2, 2, 1), ("RFIW", "RIFW", "FRIW")))
    assert tick(drawn).seconds == 4


def test_given_words_have_depths_of_their_own():
    words: tuple[Word, ...] = ("FRIW",) * 4
    found = least_orders(split_chain(4, PARTS), words, TIGHT)
    assert found == Orders((4, 3, 2, 1), words)


def test_given_depths_get_the_words_with_the_shortest_tick():
    depths = (2, 2, 1)
    model = with_orders(split_chain(3, [PARTS, PARTS, HEAD]), Orders(depths, ("FRIW",) * 3))
    assert tick(model).seconds > 4
    assert tick(with_orders(model, Orders(depths, best_words(model)))).seconds == 4


def test_an_update_follows_the_last_part():
    """Of two stages with depth 1, F of both, R and I of the second, I, W and U of the first follow each other; the stem's R need not wait."""
    updating = evolve(PARTS, update=1)
    assert tick(with_orders(split_chain(2, updating), Orders((1, 1), ("FRIW", "FRIW")))).seconds == 7


def legal(model: Pipeline, most: int) -> list[Orders]:
    count = len(model.stages) - 1
    found = []
    head = arrangements(model.head.word)[0]
    for words in product(*(arrangements(stage.word) for stage in model.stages[:-1])):
        for depths in product(range(1, most + 1), repeat=count):
            orders = Orders((*depths, 1), (*words, head))
            fill = all(word[0] == "F" or depth > 1 for depth, word in zip(*orders, strict=True))
            if fill and with_orders(model, orders).may_run:
                found.append(orders)
    return found


@st.composite
def chains(draw: st.DrawFn, most: int = 4) -> Pipeline:
    stages = draw(st.integers(2, most))
    link = Link(latency_seconds=draw(st.sampled_from([0.0, 0.25])))
    words = [arrangements(draw(st.sampled_from(get_args(Word))))[0] for _ in range(stages)]
    seconds = [draw(part_seconds(word)) for word in words]
    return split_chain(stages, seconds, words, link=link, overlap=draw(st.booleans()))


@settings(max_examples=40, deadline=None)
@given(chains() | split_pipelines(capacity=False, most_stages=4, shallow=True))
def test_no_depths_and_words_at_full_throughput_have_a_smaller_sum(model: Pipeline):
    model = evolve(model, stages=tuple(evolve(stage, accumulation=1) for stage in model.stages))
    found = least_orders(model, tolerance=TIGHT)
    limit = unbounded_tick(model) * (1 + 2 * TIGHT)
    assert tick(with_orders(model, found)).seconds <= limit
    for orders in legal(model, min(4, max(found.depths))):
        if sum(orders.depths) < sum(found.depths):
            assert tick(with_orders(model, orders)).seconds > limit, orders


@settings(max_examples=25, deadline=None)
@given(chains() | split_pipelines(capacity=False, most_stages=4))
def test_no_words_have_a_shorter_tick_for_the_same_depths(model: Pipeline):
    model = evolve(model, stages=tuple(evolve(stage, accumulation=1) for stage in model.stages))
    depths = tuple(max(stage.depth, 2) if stage is not model.head else 1 for stage in model.stages)
    words = tuple(arrangements(stage.word)[0] for stage in model.stages)
    plain = with_orders(model, Orders(depths, words))
    if not plain.may_run:
        return
    found = tick(with_orders(model, Orders(depths, best_words(plain, TIGHT)))).seconds
    for tried_words in product(*map(arrangements, words[:-1])):
        tried = with_orders(model, Orders(depths, (*tried_words, words[-1])))
        if tried.may_run:
            assert found <= tick(tried).seconds * (1 + 1e-6)


@settings(max_examples=25, deadline=None)
@given(split_pipelines(capacity=False))
def test_full_throughput_with_any_accumulation(model: Pipeline):
    found = least_orders(model)
    chosen = with_orders(model, found)
    assert chosen.may_run
    assert tick(chosen).seconds <= unbounded_tick(model) * (1 + 1e-3) * (1 + TIGHT)


def test_stages_that_share_a_device_have_plain_words():
    model = split_chain(4, PARTS, devices="aabb")
    found = least_orders(model)
    assert found.words == ("FRIW",) * 4
    assert tick(with_orders(model, found)).seconds == pytest.approx(8, rel=1e-3)


def test_a_hundred_stages_with_latencies():
    model = split_chain(100, PARTS, link=Link(latency_seconds=0.3))
    found = least_orders(model)
    assert tick(with_orders(model, found)).seconds <= 4 * 1.001
