"""The network computes what a transformer computes, whatever of it is reversible."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from petra_graph_conformance import Trial
from petra_graph_conformance.blocks.inverse_and_gradients import check_inverse
from petra_graph_transformers.blocks import RevTransformer, TokenEmbedding, TokenLogits, rotated
from petra_graph_transformers.declared import (
    REV_TRANSFORMER,
    LogitsOptions,
    RevTransformerOptions,
    TokenEmbeddingOptions,
)
from torch.nn import functional


@pytest.mark.long
@settings(deadline=None, max_examples=15, derandomize=True)
@given(
    tokens=st.integers(1, 9),
    heads=st.integers(1, 3),
    each=st.integers(1, 3),
    causal=st.booleans(),
    rotary=st.booleans(),
)
def test_a_block_is_inverted_at_any_size(tokens: int, heads: int, each: int, causal: bool, rotary: bool) -> None:
    width = heads * each * (1 + rotary)
    options = {"heads": heads, "causal": causal, "rotary": rotary, "dropout": 0.2}
    check_inverse(Trial.of(REV_TRANSFORMER, [(tokens, width)] * 2, options))


def test_the_block_is_attention_and_mlp() -> None:
    """Equation 4 of Mangalam et al. 2022, written out: each head by itself, the causal mask as a matrix."""
    block = RevTransformer([(5, 6), (5, 6)], RevTransformerOptions(heads=2, causal=True, output_std=0.3)).double()
    x1, x2 = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    x = functional.layer_norm(x2, (6,))
    q, k, v = (x @ block.attention.read.weight.T).chunk(3, dim=-1)
    later = torch.ones(5, 5).triu(1).bool()
    heads = []
    for at in (slice(0, 3), slice(3, 6)):
        scores = (q[..., at] @ k[..., at].mT / 3**0.5).masked_fill(later, -torch.inf)
        heads.append(scores.softmax(-1) @ v[..., at])
    y1 = x1 + torch.cat(heads, dim=-1) @ block.attention.write.weight.T
    weights = {name: parameter.detach() for name, parameter in block.mlp.named_parameters()}
    hidden = functional.gelu(functional.layer_norm(y1, (6,)) @ weights["0.weight"].T, approximate="tanh")
    y2 = x2 + hidden @ weights["2.weight"].T
    torch.testing.assert_close(block(x1, x2), (y1, y2))


@pytest.mark.parametrize("rotary", [False, True])
@torch.no_grad()
def test_no_logit_depends_on_later_tokens_and_fewer_may_be_read(rotary: bool) -> None:
    positions = "none" if rotary else "learned"
    embedding = TokenEmbedding([(7,)], TokenEmbeddingOptions(vocabulary=11, width=8, positions=positions))
    block = RevTransformer([(7, 8)] * 2, RevTransformerOptions(heads=2, causal=True, rotary=rotary, output_std=1.0))
    head = TokenLogits([(7, 8)] * 2, LogitsOptions(classes=11))
    tokens = torch.randint(11, (2, 7))
    (whole,) = head(*block(*embedding(tokens)))
    assert whole.shape == (2, 11, 7)
    (begun,) = head(*block(*embedding(tokens[:, :4])))
    torch.testing.assert_close(begun, whole[..., :4])
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 11
    (other,) = head(*block(*embedding(changed)))
    torch.testing.assert_close(other[..., :4], whole[..., :4])
    assert not torch.allclose(other[..., 4:], whole[..., 4:])


@pytest.mark.parametrize(("positions", "tables"), [("learned", ("positions",)), ("none", ())])
def test_learned_positions_are_a_table(positions: str, tables: tuple[str, ...]) -> None:
    options = TokenEmbeddingOptions(vocabulary=11, width=8, positions=positions)
    assert TokenEmbedding([(7,)], options).tables == tables


def test_without_the_mask_earlier_positions_see_later_ones() -> None:
    block = RevTransformer([(4, 8)] * 2, RevTransformerOptions(heads=2, output_std=1.0))
    x = torch.randn(1, 4, 8)
    other = x.clone()
    other[:, 3] *= -1.0
    assert not torch.allclose(block(x, x)[0][:, 0], block(x, other)[0][:, 0])


@given(first=st.integers(0, 20), apart=st.integers(0, 20))
@settings(deadline=None, max_examples=20, derandomize=True)
def test_rotated_products_depend_on_distances_alone(first: int, apart: int) -> None:
    q, k = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = rotated(q.expand(50, 6)), rotated(k.expand(50, 6))
    torch.testing.assert_close(at[0][first] @ at[1][first + apart], at[0][0] @ at[1][apart], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(at[0][first].norm(), q.norm(), rtol=1e-6, atol=1e-6)


def test_a_width_that_heads_cannot_share() -> None:
    with pytest.raises(ValueError, match="cannot split 8 features into 3 heads"):
        RevTransformer([(4, 8)] * 2, RevTransformerOptions(heads=3))
