"""Blocks that keep all promises: the first party's, and those that are right in an unusual way."""

from __future__ import annotations

import pytest
from petra_graph_conformance import Trial
from petra_graph_conformance.blocks.block_trial import Tokens
from petra_graph_conformance.likely_trials import likely_trial
from torch import nn

from petra_graph.blocks import Buffered, Head
from petra_graph.kinds.block import BLOCK
from petra_graph.registry.registry import discover
from tests.promises import mistaken_streams as streams
from tests.support.blocks import SHAPE, Scaled, Sound, Stem
from tests.support.kit import kept

REGISTRY = discover().only(["petra-graph"])


# Parts of a network have shapes that only the network says; tests/catalog/blocks/test_every_block.py tries them.
@pytest.mark.parametrize("name", [name for name in REGISTRY.names(BLOCK) if not name.startswith("module-part")])
def test_the_first_party_s_blocks_pass(name):
    module = {"module": "torch.nn:Linear", "kwargs": {"in_features": 6, "out_features": 3}}
    assert kept(likely_trial(REGISTRY.resolve(BLOCK, name), module if name.startswith("module") else {}))


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
    assert kept(Trial.of(block, [SHAPE] * (block.streams or 2)))


class HeadWithStatistics(Head):
    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.norm = nn.BatchNorm1d(inputs[0][0])

    def forward(self, x):
        return (self.norm(x),)


def test_a_head_counts_its_statistics_in_its_forward():
    assert kept(Trial.of(HeadWithStatistics, [SHAPE]))


class Embeds(Buffered):
    streams = 1

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.table = nn.Embedding(8, 3)

    def forward(self, tokens):
        return (self.table(tokens),)


def test_tokens_have_no_gradient():
    """A block of tokens was examined at length, and was right."""
    assert kept(Trial.of(Embeds, [(5,)], draw=Tokens(8)))
