"""Broken on purpose: statistics, random numbers, streams. The function that checks the promise catches each."""

from __future__ import annotations

import pytest
from petra_graph_conformance import Trial
from petra_graph_conformance.blocks.inverse_and_gradients import check_inverse
from petra_graph_conformance.blocks.learned_and_running_state import check_statistics
from petra_graph_conformance.blocks.repeatable_evaluation import check_evaluation_mode, check_randomness
from petra_graph_conformance.blocks.shapes_and_streams import check_shapes, check_streams_untouched

from tests.promises.mistaken_streams import (
    AddsIntoGradient,
    Caches,
    CachesConstants,
    Centres,
    CountsCalls,
    CountsInAnObject,
    CountsInInverse,
    CountsTwice,
    DrawsInVain,
    Dropout,
    DropsInEvaluation,
    DropsSeldom,
    DropsUnsaid,
    Follows,
    Halves,
    Keeps,
    Listed,
    MakesABuffer,
    MovingCodebook,
    NeverCounts,
    NoRunningStatistics,
    NumpyNoise,
    OneForAll,
    OtherMasksInBackward,
    OwnGenerator,
    Refuses,
    ReluInPlace,
    ReturnsTuples,
    SeedsItself,
    SeedsLater,
    Single,
    Spectral,
    SubtractsInPlace,
    SwitchesModes,
    TwoHeaded,
    WarmsUpUnsaid,
)
from tests.support.blocks import SHAPE, caught
from tests.support.kit import kept


def test_a_constant_that_is_made_at_the_first_use_is_no_state():
    kept(Trial.of(CachesConstants, [SHAPE, SHAPE]))


def test_a_cache_of_the_last_micro_batch_is_no_state():
    check_statistics(Trial.of(Caches, [SHAPE, SHAPE]))


def test_statistics_of_ones_own_are_held():
    kept(Trial.of(Follows, [SHAPE, SHAPE]))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (CountsTwice, "running.mean changed in a forward without a graph, so each micro-batch counts twice"),
        (NeverCounts, "running.mean moved by 0.00e+00 relative; one training forward moves it by"),
        (CountsCalls, "calls moved in a forward without a graph, so each micro-batch counts two or three times"),
        (MakesABuffer, "table was made in a forward without a graph"),
        (CountsInAnObject, "log moved in a forward without a graph"),
        (
            Spectral,
            "linear.parametrizations.weight.0._u, linear.parametrizations.weight.0._v changed in a forward without",
        ),
        (MovingCodebook, "codes changed in a forward without a graph"),
        (CountsInInverse, "over forward and backward of one micro-batch running.mean moved by"),
    ],
)
def test_statistics_that_count_wrongly(block, message):
    assert message in caught(check_statistics, block)


def test_a_block_may_have_a_train_of_its_own():
    kept(Trial.of(SwitchesModes, [SHAPE, SHAPE]))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (DropsInEvaluation, "random numbers were drawn"),
        (Centres, "a batch's outputs are not those of its samples"),
        (NoRunningStatistics, "a batch, or one of its samples alone, raised ValueError at"),
    ],
)
def test_an_evaluation_that_depends_on_more_than_the_sample(block, message):
    assert message in caught(check_evaluation_mode, block)


def test_dropout_is_held():
    kept(Trial.of(Dropout, [SHAPE, SHAPE]))


@pytest.mark.parametrize("seed", range(3))
def test_two_micro_batches_may_have_the_same_masks(seed):
    """Equal outputs were taken for a block that seeds itself, at any rate but one half."""
    check_randomness(Trial.of(DropsSeldom, [SHAPE, SHAPE], seed=seed))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (NumpyNoise, "the same micro-batch drew other numbers: outputs differ by up to"),
        (OwnGenerator, "the same micro-batch drew other numbers"),
        (DrawsInVain, "training moved the global generator of numpy and python"),
        (SeedsItself, "the block seeds torch's generator, so all micro-batches draw the same"),
        (SeedsLater, "the block seeds torch's generator"),
        (DropsUnsaid, "random numbers were drawn, or micro_batch() was asked, though a class says `draws = False`"),
        (WarmsUpUnsaid, "random numbers were drawn, or micro_batch() was asked, though a class says `draws = False`"),
    ],
)
def test_random_numbers_that_follow_from_no_key(block, message):
    assert message in caught(check_randomness, block)


def test_other_masks_in_backward():
    assert "reverse_vjp reconstructs is not x" in caught(check_inverse, OtherMasksInBackward)


def test_a_reversible_block_may_change_shapes_where_its_inverse_returns_them():
    """Down-sampling that loses nothing had to leave the promise out."""
    check_shapes(Trial.of(Halves, [SHAPE]))
    assert "inverse(*forward(*x)) is not x" in caught(check_inverse, Halves)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            ReturnsTuples,
            "reverse_vjp returned tuple\n    do: return petra_graph.blocks.Reversed(inputs, gradients): two tuples",
        ),
        (Keeps, "4x6 came in, and 4x3 came out; the inverse returns 4x3"),
        (Refuses, "4x6 came in, and 4x3 came out; the inverse raised ValueError at"),
        (Listed, "forward returned list"),
        (OneForAll, "4 samples came in, and 1x4 came out"),
        (Single, "an output is float32 where parameters and inputs are float64"),
    ],
)
def test_wrong_shapes(block, message):
    assert message in caught(check_shapes, block)


def test_a_head_may_return_several():
    kept(Trial.of(TwoHeaded, [(3,)]))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (ReluInPlace, "forward changed its input stream 0 in place, by up to"),
        (AddsIntoGradient, "backward changed its gradient stream 0 in place"),
        (SubtractsInPlace, "backward changed its output stream 0 in place"),
    ],
)
def test_streams_changed_in_place(block, message):
    assert message in caught(check_streams_untouched, block)
