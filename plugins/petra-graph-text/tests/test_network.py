"""The network computes what a transformer computes, whatever of it is reversible."""

import pytest
import torch
from petra_graph_text.training import TokenCrossEntropy
from petra_graph_text.transformer import RevTransformer, TokenEmbedding, TokenLogits, rotated
from torch.nn import functional


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "each"), [(1, 1, 1), (9, 3, 2), (4, 2, 3)])
def test_a_block_is_inverted_and_differentiated_at_any_size(
    tokens: int, heads: int, each: int, causal: bool, rotary: bool
) -> None:
    shape = (tokens, heads * each * (1 + rotary))
    block = RevTransformer([shape] * 2, heads=heads, causal=causal, rotary=rotary, output_std=0.3).double()
    streams = tuple(torch.randn(2, 2, *shape, dtype=torch.float64, requires_grad=True))
    outputs, gradients = block(*streams), tuple(torch.randn(2, 2, *shape, dtype=torch.float64))
    expected = torch.autograd.grad(outputs, [*streams, *block.parameters()], gradients)
    found = block.reverse_vjp(tuple(one.detach() for one in outputs), gradients)
    torch.testing.assert_close(found.inputs, streams)
    torch.testing.assert_close((*found.gradients, *(one.grad for one in block.parameters())), expected)


def test_the_block_is_attention_and_mlp() -> None:
    """Equation 4 of Mangalam et al. 2022, written out: each head by itself, the causal mask as a matrix."""
    block = RevTransformer([(5, 6), (5, 6)], heads=2, causal=True, output_std=0.3).double()
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
    embedding = TokenEmbedding([(7,)], vocabulary=11, width=8, positions=positions)
    block = RevTransformer([(7, 8)] * 2, heads=2, causal=True, rotary=rotary, output_std=1.0)
    head = TokenLogits([(7, 8)] * 2, classes=11)
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


@pytest.mark.parametrize(("first", "apart"), [(0, 3), (7, 1), (20, 20), (11, 0)])
def test_rotated_products_depend_on_distances_alone(first: int, apart: int) -> None:
    q, k = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = rotated(q.expand(50, 6)), rotated(k.expand(50, 6))
    torch.testing.assert_close(at[0][first] @ at[1][first + apart], at[0][0] @ at[1][apart], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(at[0][first].norm(), q.norm(), rtol=1e-6, atol=1e-6)


def test_the_loss_is_the_mean_over_samples_and_its_bits_are_nats_over_log_2() -> None:
    loss = TokenCrossEntropy()
    logits, target = torch.randn(4, 11, 6), torch.randint(11, (4, 6))
    whole = float(loss(logits, target))
    halves = [float(loss(logits[part], target[part])) for part in (slice(0, 2), slice(2, 4))]
    assert sum(halves) / 2 == pytest.approx(whole)
    sums = loss.metrics(logits, target)
    assert float(sums["bits"]) / 4 == pytest.approx(whole / torch.tensor(2.0).log().item())
    assert float(sums["top1"]) / 4 == pytest.approx(float((logits.argmax(1) == target).double().mean()))
