"""Split backwards compute what a reference in plain PyTorch computes; operations see the parameters that depths say."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import pytest
import torch

from petra_graph.executor.stage_observer import StageObserver
from petra_graph.spec.model import NodeSpec, Word
from tests.support import split_reference
from tests.support.pairwise import pairs_of
from tests.support.pipelines import CLASSES, Pipeline, batches, node, pipeline, relative_error

RATE, MOMENTUM, SEED = 0.05, 0.9, 3
STEM, HEAD = node("stem", "linear-stem", features=6), node("head", "pool-linear", outputs=CLASSES)
LEGAL = {
    3: ((2, 2, 1), ("RFIW", "RIFW", "FRIW")),
    4: ((3, 2, 2, 1), ("RFIW", "FRIW", "RIFW", "FRIW")),
    5: ((4, 3, 3, 2, 1), ("RIFW", "FRIW", "RFIW", "RFIW", "FRIW")),
    6: ((9, 5, 5, 3, 2, 1), ("FRIW", "FRIW", "RIFW", "RFIW", "FRIW", "FRIW")),
    7: ((4, 4, 3, 3, 2, 2, 1), ("RFIW", "RIFW", "RFIW", "RIFW", "RFIW", "RIFW", "FRIW")),
}
"""Depths and words by the number of stages; the depths of R and I do not grow along the chain."""
JOINED = {
    3: ((3, 2, 1), ("RFB", "FB", "FRB")),
    4: ((4, 3, 2, 1), ("RIFW", "RFB", "FB", "FB")),
    6: ((5, 4, 3, 3, 2, 1), ("FB", "RFIW", "FB", "FRB", "RFB", "FRIW")),
}
"""Some of them join I and W, or all of a backward."""


def chain(stages: int, **options: float) -> tuple[NodeSpec, ...]:
    reversible = (node(f"rev{index}", "rev-mlp", hidden=7, activation="tanh", **options) for index in range(stages - 2))
    return (STEM, *reversible, HEAD)


def reference_of(built: Pipeline) -> list[split_reference.Stage]:
    return [
        split_reference.Stage(
            modules={name: copy.deepcopy(module) for name, module in executor.modules.items()},
            word=executor.program.word,
            depth=executor.program.depth,
            rate=RATE,
            momentum=MOMENTUM,
            seed=SEED,
        )
        for executor in built.executors
    ]


def held(stages: Sequence[split_reference.Stage]) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value
        for stage in stages
        for name, module in stage.modules.items()
        for key, value in module.state_dict().items()
    }


def built_chain(nodes: Sequence[NodeSpec], shape: tuple[int, ...], depths, words, *, k: int, **more) -> Pipeline:
    return pipeline(
        nodes,
        shape,
        schedule=depths,
        words=words,
        accumulation=k,
        rate=lambda _: RATE,
        seed=SEED,
        momentum=MOMENTUM,
        weight_decay=0.0,
        nesterov=False,
        **more,
    )


def agrees_with_the_reference(built: Pipeline, shape: tuple[int, ...], k: int, count: int = 11) -> None:
    stages = reference_of(built)
    data = batches(shape, count)
    data[4][1][0] = -100
    with torch.random.fork_rng():
        expected = split_reference.train(stages, data, k)
    found = [float(result.loss) for result in built.train(data)]
    assert found == pytest.approx(expected, rel=1e-12)
    assert relative_error(built.parameters(), held(stages)) < 1e-12


@pytest.mark.parametrize(("dropout", "orders", "k"), pairs_of([0.0, 0.3], [*LEGAL.values(), *JOINED.values()], [1, 3]))
def test_a_chain_is_the_reference(orders, k, dropout):
    built = built_chain(chain(len(orders[0]), dropout=dropout), (8,), *orders, k=k)
    agrees_with_the_reference(built, (8,), k)


CONVOLUTIONS = (
    node("stem", "conv-stem", channels=4),
    node("a0", "rev-basic", dropout=0.2),
    node("a1", "rev-basic"),
    node("down", "down-basic", channels=6, stride=2),
    node("b0", "rev-basic", dropout=0.2),
    node("head", "pool-linear", outputs=CLASSES),
)
CUT = (("stem", "a0"), ("a1", "down"), ("b0", "head"))


@pytest.mark.parametrize(("k", "policy", "orders"), pairs_of([1, 3], ["arrival", "static"], [LEGAL[3], JOINED[3]]))
def test_stages_of_several_segments_with_running_statistics_are_the_reference(k, policy, orders):
    built = built_chain(CONVOLUTIONS, (3, 6, 6), *orders, k=k, stages=CUT, policy=policy)
    agrees_with_the_reference(built, (3, 6, 6), k)


class Noting(StageObserver):
    """Notes the operations of a stage with the number of updates before them."""

    def __init__(self, executor, seen: list[str]) -> None:
        self.executor, self.seen = executor, seen
        for letter, verb in zip(
            "FRIW", ("forward", "reconstruct", "input_gradient", "parameter_gradient"), strict=True
        ):
            setattr(self, verb, lambda m, *_, letter=letter: self.note(letter, m))

    def note(self, letter: str, micro_batch: int):
        self.seen.append(f"{letter}{micro_batch}/{self.executor.updater.updates}")
        return super().forward(micro_batch, None)


THREE_STAGES = """
F0/0 R0/0 F1/0 I0/0 W0/0 R1/1 F2/1 I1/1 W1/1 R2/2 I2/2 W2/2
F0/0 R0/0 I0/0 F1/0 W0/0 R1/1 I1/1 F2/1 W1/1 R2/2 I2/2 W2/2
F0/0 R0/0 I0/0 W0/0 F1/1 R1/1 I1/1 W1/1 F2/2 R2/2 I2/2 W2/2
"""


def test_the_three_stages_of_the_page():
    """Every operation with the updates that it sees: R, I and W of m those after m - 1, F(m) those up to m - depth."""
    built = built_chain(chain(3), (8,), *LEGAL[3], k=1)
    reference = reference_of(built)
    seen: list[list[str]] = [[], [], []]
    for executor, notes in zip(built.executors, seen, strict=True):
        executor.observe(Noting(executor, notes))
    data = batches((8,), 3)
    built.train(data)
    split_reference.train(reference, data, 1)
    assert [" ".join(notes) for notes in seen] == THREE_STAGES.split("\n")[1:-1]
    by_reference = [" ".join(f"{v}{m}/{u}" for v, m, u in stage.seen if v != "U") for stage in reference]
    assert by_reference == THREE_STAGES.split("\n")[1:-1]


@pytest.mark.parametrize("word", get_args(Word))
@pytest.mark.parametrize("next_word", ["FRIW", "FB"])
def test_nothing_is_kept_when_the_pipeline_has_drained(word: Word, next_word: Word):
    built = built_chain(chain(3), (8,), (3, 2, 1), (word, next_word, "FRB"), k=2)
    built.train(batches((8,), 5))
    for executor in built.executors:
        assert executor.open is None
        assert not executor.sums_in_flight
        assert not executor._weights
        for _, runner in executor.runners:
            assert not getattr(runner, "buffer", ())
            assert runner._vjp is None
            assert runner._rest is None
            assert not getattr(runner, "pending", ())


def test_depths_of_the_table_are_legal():
    for depths, words in LEGAL.values():
        for part in "RI":
            beyond = [depth - (word.index("F") > word.index(part)) for depth, word in zip(depths, words, strict=True)]
            assert all(before >= after for before, after in pairwise(beyond))
