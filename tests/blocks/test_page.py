"""The listing of the blocks' page keeps every promise of a block."""

from __future__ import annotations

import torch

from petra_graph.testing import Trial
from tests.support import ROOT
from tests.support.kit import kept
from tests.support.pages import Page, files_of

PAGE = Page(ROOT / "petra_graph" / "blocks" / "README.md")


def test_the_block_with_a_mask_keeps_every_promise():
    names = {}
    exec(files_of(PAGE)["masked.py"], names)

    def draw(shape, generator):
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 3:
            return values
        mask = (values > 0).long()
        mask[:, 0] = 1
        return mask

    kept(Trial.of(names["Masked"], [(5, 8), (5, 8), (5,)], draw=draw))
