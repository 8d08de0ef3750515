"""Colours of devices: Paul Tol's light set, in which black text is legible and neighbours differ for the colour-blind.

Colours repeat where devices outnumber them; so a picture always names the device as well.
"""

from __future__ import annotations

from itertools import cycle

from petra_graph.program.plan_document import Document

DEVICE_COLOURS = ("#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#dddddd")


def device_colours(document: Document) -> dict[str, str]:
    """Return each device's colour, in the devices' order."""
    return {device["name"]: colour for device, colour in zip(document["devices"], cycle(DEVICE_COLOURS), strict=False)}
