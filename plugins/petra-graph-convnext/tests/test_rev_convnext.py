"""The block has the properties that training relies on, a declaration without torch, and the paper's layers."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from petra_graph_conformance import Trial, check_imports_no_torch, parametrize_with_checks
from petra_graph_conformance.blocks.inverse_and_gradients import check_inverse
from petra_graph_convnext.block import RevConvNext
from petra_graph_convnext.declared import REV_CONVNEXT, RevConvNextOptions

HERE = Path(__file__).parent.parent
STREAMS = [(8, 6, 6), (8, 6, 6)]


@parametrize_with_checks(
    Trial.of(REV_CONVNEXT, STREAMS),
    Trial.of(REV_CONVNEXT, STREAMS, {"kernel": 3, "expansion": 1}),
    Trial.of(REV_CONVNEXT, STREAMS, {"kernel": 1, "dropout": 0.3}),
)
def test_a_promise(check: Callable[[], None]) -> None:
    check()


@settings(deadline=None, max_examples=20, derandomize=True)
@given(shape=st.tuples(st.integers(1, 6), st.integers(1, 8), st.integers(1, 8)), seed=st.integers(0, 2**32))
def test_it_is_inverted_at_any_shape(shape: tuple[int, int, int], seed: int) -> None:
    check_inverse(Trial.of(REV_CONVNEXT, [shape, shape], {"kernel": 3, "dropout": 0.2}, seed=seed))


def test_its_declaration_imports_no_torch() -> None:
    check_imports_no_torch("petra_graph_convnext.declared")


def test_it_is_registered() -> None:
    (entry,) = entry_points(group="petra_graph.blocks", name="rev-convnext")
    assert entry.load() is REV_CONVNEXT


def test_the_residual_function_is_convnexts() -> None:
    """7x7 depthwise, LayerNorm over channels, 1x1 to four times the width, GELU, 1x1 back (figure 4)."""
    block = RevConvNext([(8, 6, 6), (8, 6, 6)], RevConvNextOptions())
    x = torch.randn(2, 8, 6, 6)
    spatial = torch.nn.functional.conv2d(x, block.spatial.weight, block.spatial.bias, padding=3, groups=8)
    mean, variance = spatial.mean(1, keepdim=True), spatial.var(1, correction=0, keepdim=True)
    normal = (spatial - mean) / (variance + 1e-5).sqrt()
    hidden = torch.nn.functional.conv2d(normal, block.expand.weight[:, :, None, None], block.expand.bias)
    expected = torch.nn.functional.conv2d(
        torch.nn.functional.gelu(hidden), block.contract.weight[:, :, None, None], block.contract.bias
    )
    assert hidden.shape == (2, 32, 6, 6)
    torch.testing.assert_close(block.residual(x), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": 4}, "must be odd, so that the convolution keeps the image's size \\(got 4\\)"),
        ({"kernel": -1}, "kernel must be at least 1"),
        ({"expansion": 0}, "expansion must be at least 1"),
        ({"dropout": 1.0}, "dropout must be less than 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RevConvNextOptions(**options)


def test_the_example_names_the_block() -> None:
    example = tomllib.loads((HERE / "examples" / "digits.toml").read_text())
    assert "rev-convnext" in {node["block"] for node in example["graph"]["node"]}
