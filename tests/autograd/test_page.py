"""The listings of the page run."""

from __future__ import annotations

import pytest
import torch

from tests.support import ROOT
from tests.support.pages import Page, files_of

FILES = files_of(Page(ROOT / "petra_graph" / "autograd" / "README.md"))


@pytest.mark.parametrize("name", ["usage.py", "transformer.py"])
def test_a_listing_trains(name):
    torch.manual_seed(0)
    names = {}
    exec(FILES[name], names)
    module = names.get("network") or names["body"]
    assert all(one.isfinite().all() for one in module.parameters())
    if name == "transformer.py":
        assert all(one.grad is not None for one in module.parameters())
