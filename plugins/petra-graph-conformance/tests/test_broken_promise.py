from __future__ import annotations

import pytest
import torch
from petra_graph_conformance.broken_promise import BrokenPromise, expect_close


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_said_to_be_and_not_compared(bad):
    """Masked attention of rows without a key was "relative error nan"."""
    one, other = torch.tensor([1.0, bad]), torch.tensor([1.0, bad])
    with pytest.raises(BrokenPromise, match="not finite, which cannot be compared"):
        expect_close("evaluation mode", "rows alone", [one], [other], remedy="normalise")


def test_what_differs_by_rounding_alone_is_close():
    one = torch.tensor([1.0, 2.0], dtype=torch.float64)
    expect_close("inverse", "it", [one + 1e-14], [one], remedy="x")
    with pytest.raises(BrokenPromise, match=r"relative error .*e-07 in float64"):
        expect_close("inverse", "it", [one + 1e-6], [one], remedy="x")
