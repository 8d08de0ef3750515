"""A block at a glance: what keeps its promises passes in few evaluations, and what breaks one does not."""

from __future__ import annotations

from collections import Counter

import pytest
from petra_graph_conformance import Trial
from petra_graph_conformance.blocks.block_trial import Tokens
from petra_graph_conformance.blocks.blocks_at_a_glance import looks_sound
from petra_graph_conformance.likely_trials import likely_trial
from torch import nn

from petra_graph.blocks import Buffered, Head
from petra_graph.kinds.block import BLOCK
from petra_graph.registry.registry import discover
from tests.promises import mistaken
from tests.promises import mistaken_streams as streams
from tests.support.blocks import SHAPE, Scaled, Sound, Stem

REGISTRY = discover().only(["petra-graph"])
OF_TRAINING = {
    "Spare",
    "NoBlock",
    "Tied",
    "Misspelt",
    "NoInverse",
    "Bare",
    "QuitsInTraining",
    "NoFeatures",
    "NoOptionsTaken",
}
"""What is found elsewhere: by shapes, by sharing nodes, or in the first updates."""
WRONG = [
    *(name for name in mistaken.own(mistaken.Right) if name not in OF_TRAINING),
    *(name for name in mistaken.own(mistaken.Buffered) if name not in OF_TRAINING),
]
OTHERS = [
    streams.CountsTwice,
    streams.NeverCounts,
    streams.CountsInInverse,
    streams.CountsCalls,
    streams.CountsInAnObject,
    streams.MakesABuffer,
    streams.Spectral,
    streams.MovingCodebook,
    streams.NumpyNoise,
    streams.DrawsInVain,
    streams.OwnGenerator,
    streams.SeedsItself,
    streams.SeedsLater,
    streams.DropsInEvaluation,
    streams.Centres,
    streams.OtherMasksInBackward,
    streams.Halves,
    streams.Keeps,
    streams.OneForAll,
    streams.ReluInPlace,
    streams.SubtractsInPlace,
]


# Parts of a network have shapes that only the network says; tests/catalog/blocks/test_every_block.py tries them.
@pytest.mark.parametrize("name", [name for name in REGISTRY.names(BLOCK) if not name.startswith("module-part")])
def test_the_first_party_s_blocks_pass(name):
    module = {"module": "torch.nn:Linear", "kwargs": {"in_features": 6, "out_features": 3}}
    assert looks_sound(likely_trial(REGISTRY.resolve(BLOCK, name), module if name.startswith("module") else {}))


@pytest.mark.parametrize(
    "block",
    [
        Sound,
        Scaled,
        Stem,
        streams.Follows,
        streams.Dropout,
        streams.DropsSeldom,
        streams.CachesConstants,
        streams.SwitchesModes,
    ],
)
def test_sound_blocks_pass(block):
    assert looks_sound(Trial.of(block, [SHAPE] * (block.streams or 2)))


@pytest.mark.parametrize("name", WRONG)
def test_the_mistakes_of_the_table_do_not(name):
    assert not looks_sound(Trial.of(getattr(mistaken, name), [SHAPE, SHAPE]))


@pytest.mark.parametrize("block", OTHERS)
def test_what_the_kit_catches_does_not(block):
    assert not looks_sound(Trial.of(block, [SHAPE] * (block.streams or 2)))


class HeadWithStatistics(Head):
    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.norm = nn.BatchNorm1d(inputs[0][0])

    def forward(self, x):
        return (self.norm(x),)


def test_a_head_counts_its_statistics_in_its_forward():
    assert looks_sound(Trial.of(HeadWithStatistics, [SHAPE]))


class Embeds(Buffered):
    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.table = nn.Embedding(8, 3)

    def forward(self, tokens):
        return (self.table(tokens),)


def test_tokens_have_no_gradient():
    """A block of tokens was examined at length, and was right."""
    assert looks_sound(Trial.of(Embeds, [(5,)], draw=Tokens(8)))


def test_it_evaluates_a_function_a_dozen_times():
    calls = Counter()

    class Counted(Sound):
        def residual(self, x):
            calls["residual"] += 1
            return super().residual(x)

    assert looks_sound(Trial.of(Counted, [SHAPE, SHAPE]))
    assert calls["residual"] <= 12
