"""One finding of an examination."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

Status = Literal["ok", "absent", "warning", "broken"]
"""absent: something optional that is not here; broken: a run, or a plugin, cannot work."""


@frozen
class Finding:
    """What was found of one thing.

    Attributes:
        area: "environment", "devices" or "plugins".
        name: of the thing.
        status: how it is.
        found: in words.
        remedy: what to do; "" where nothing is to be done.
    """

    area: Literal["environment", "devices", "plugins"] = field(kw_only=True)
    name: str
    status: Status
    found: str
    remedy: str = ""
