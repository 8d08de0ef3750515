"""The look of the studies' figures: readable on a light page and on a dark one."""

from __future__ import annotations

import matplotlib as mpl
from PIL import Image

from tests.support.contrast import GRAPHICS, contrast
from tools.studies.drawing import COLOURS, figure_of


def test_figures_are_opaque_whatever_the_readers_settings(tmp_path):
    path = tmp_path / "figure.png"
    with (
        mpl.rc_context({"savefig.transparent": True, "savefig.facecolor": "none"}),
        figure_of(path, title="a figure") as axis,
    ):
        axis.plot([1, 2], [2, 1])
    assert Image.open(path).convert("RGBA").getextrema()[3] == (255, 255)


def test_every_curves_colour_shows_on_white():
    assert all(contrast(colour, "#ffffff") >= GRAPHICS for colour in COLOURS)
