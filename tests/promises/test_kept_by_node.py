"""What single nodes keep changes what is stored and how long a step takes, and only rounding where parameters stand still.

That processes, cuts and resuming change no bit is shown with all methods, by cases of `tests.support.same_bits_cases`.
"""

from __future__ import annotations

import pytest
import torch

from petra_graph.compiler.placement_search import cut_and_place
from tests.promises.test_identities import FIFTY_UPDATES, plain_training
from tests.support.costs import costs, predicted_and_measured
from tests.support.pipelines import CHAIN, REVNET, SHAPES, batches, pipeline, relative_error
from tests.support.settings import setting

SHAPE = SHAPES["revnet"]
SAMPLES = 256
"""So many that a scalar of each stream does not count."""
BODY = ("stem", "a0", "a1", "down", "b0")
REVERSIBLE = ("a0", "a1", "b0")
MIXED = {"a0": "input", "a1": "graph", "down": "graph"}


def all_of(keeps, names=BODY):
    return dict.fromkeys(names, keeps)


def trained(**settings):
    built = pipeline(REVNET, SHAPE, schedule=settings.pop("schedule", "1f1b"), accumulation=2, **settings)
    built.train(batches(SHAPE, 7))
    return built.parameters()


@pytest.mark.parametrize(
    ("asked", "same"),
    [
        ({"settings": {"keep": all_of("input")}}, {"method": "dsp"}),
        ({"method": "dsp", "settings": {"keep": all_of("nothing", REVERSIBLE)}}, {"method": "petra"}),
        (
            {"method": "pipedream", "settings": {"keep": all_of("nothing", REVERSIBLE)}},
            {"method": "delayed-reconstructed"},
        ),
        (
            {"settings": {"keep": all_of("graph"), "allow_stored": True}},
            {"method": "pipedream", "settings": {"keep": all_of("graph")}},
        ),
        ({"method": "1f1b-flush", "settings": {"keep": all_of("graph")}}, {"method": "1f1b-flush"}),
    ],
    ids=str,
)
def test_nodes_that_all_keep_what_another_method_keeps_have_its_bits(asked, same):
    found, expected = trained(**asked), trained(**same)
    assert all(torch.equal(value, expected[key]) for key, value in found.items())


@pytest.mark.parametrize("schedule", ["sequential", (1, 1, 1, 1, 1, 1)], ids=str)
def test_at_depth_1_any_choice_is_plain_autograd(schedule):
    built = pipeline(REVNET, SHAPE, schedule=schedule, settings={"keep": MIXED}, weight_decay=1e-3)
    data = batches(SHAPE, 10)
    expected = plain_training(built, data, 1)
    built.train(data)
    assert relative_error(built.parameters(), expected) < FIFTY_UPDATES


def test_a_method_that_flushes_has_one_gradient_whatever_nodes_keep():
    plain, mixed, lean = (
        trained(method="1f1b-flush", settings={"keep": kept})
        for kept in ({}, MIXED, {**all_of("input"), **all_of("nothing", REVERSIBLE)})
    )
    assert relative_error(mixed, plain) < FIFTY_UPDATES
    assert relative_error(lean, plain) < FIFTY_UPDATES


def test_under_delay_a_node_that_stores_its_input_is_not_one_that_reconstructs():
    """The semantics page says so: reconstruction inverts with newer parameters than those of the forward."""
    assert relative_error(trained(settings={"keep": {"a0": "input"}}), trained()) > 1e-6


@pytest.mark.parametrize(("method", "allow_stored"), [("petra", True)])
def test_memory_is_as_predicted_under_five_limits(method, allow_stored):
    """What the planner chooses at each is another mixture; the promise is 1 percent."""
    table = costs(CHAIN, (8,), batch=SAMPLES)
    free = setting(2, method=method, schedule="1f1b", accumulation=2, table=table, allow_stored=allow_stored)
    ends = [max(free.held_bytes(cut_and_place(free, 2, keep))) for keep in ("least", "fill")]
    mixtures = set()
    for step in range(5):
        limit = ends[0] + step * (ends[1] - ends[0]) // 4
        inputs = setting(
            2, method=method, schedule="1f1b", accumulation=2, table=table, allow_stored=allow_stored, memory=limit
        )
        placement = cut_and_place(inputs, 2, "fill")
        mixtures.add(tuple(placement.kept.items()))
        predicted, measured = predicted_and_measured(
            CHAIN,
            (8,),
            batch=SAMPLES,
            method=method,
            schedule="1f1b",
            accumulation=2,
            stages=tuple(stage.nodes for stage in placement.stages),
            settings={"keep": placement.kept, "allow_stored": allow_stored},
        )
        for stage, found in zip(predicted, measured, strict=True):
            assert stage.total == pytest.approx(found, rel=0.01)
            assert found <= 1.01 * limit
    assert len(mixtures) > 2
