"""The nodes of each network, without torch: `nodes.json`, which `tools/nodes.py` writes from torchvision itself.

Decision: a table in a file, since an architecture is written out without importing torch. Blocks cut the network itself when
they are built, and name what differs from the table where another torchvision cuts otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files


@cache
def _table() -> Mapping[str, Mapping[str, bool]]:
    networks: Mapping[str, Mapping[str, bool]] = json.loads(files(__package__).joinpath("nodes.json").read_text())
    return networks


def networks() -> tuple[str, ...]:
    """Return the names of all networks."""
    return tuple(_table())


def nodes(network: str) -> Mapping[str, bool]:
    """Return the names of a network's nodes in order, and of each whether it adds its input to a function of it."""
    return _table()[network]


def unknown(network: str) -> str | None:
    """Return why there is no network of this name; None where there is."""
    if network in _table():
        return None
    close = get_close_matches(network.lower(), _table(), n=3, cutoff=0.5)
    families = sorted({name.split("_")[0].rstrip("0123456789x") for name in _table()})
    meant = f"did you mean {' or '.join(map(repr, close))}?" if close else f"families: {', '.join(families)}"
    return f"must be a classification network of torchvision (got {network!r}); {meant}"
