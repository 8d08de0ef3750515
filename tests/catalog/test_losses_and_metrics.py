"""Losses and counts against values written out by hand; perplexity against a plain computation, whatever the batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.catalog.losses_and_metrics import CrossEntropy, Perplexity, mean_squared_error

PLAIN = CrossEntropy()
SQUARED = mean_squared_error
BOTH = pytest.mark.parametrize("loss", [PLAIN, SQUARED], ids=["cross-entropy", "mean-squared-error"])


@pytest.mark.parametrize("loss", [PLAIN, SQUARED, CrossEntropy(label_smoothing=0.1)])
def test_the_share_1_of_a_class_is_this_class(loss):
    output, target = torch.randn(4, 7, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 0, 6, 6])
    shares = functional.one_hot(target, 7).float()
    torch.testing.assert_close(loss(output, shares), loss(output, target))
    if loss is not SQUARED:
        assert loss.target_weight(shares) == loss.target_weight(target) == 4
        counts = [{name: float(count) for name, count in loss.metrics(output, one).items()} for one in (shares, target)]
        assert counts[0] == counts[1]


def test_of_shares_top1_counts_that_of_the_class_that_was_found():
    output, shares = (
        torch.tensor([[3.0, 1.0, 0.0], [0.0, 1.0, 0.0]]),
        torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.0, 0.5]]),
    )
    assert PLAIN.metrics(output, shares)["top1"] == 0.75


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("passed_over", [0, 2])
def test_targets_are_passed_over_and_bits_are_torchs(smoothing, passed_over):
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(3, 5, 7, generator=generator).requires_grad_()
    target = torch.randint(5, (3, 7), generator=generator)
    target[:passed_over] = target[2, 3] = -100
    losses = CrossEntropy(label_smoothing=smoothing)
    loss = losses(output, target)
    (gradient,) = torch.autograd.grad(loss, output)
    assert losses.target_weight(target) == pytest.approx(3 - passed_over - 1 / 7)
    expected = functional.cross_entropy(output, target, label_smoothing=smoothing)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, torch.autograd.grad(expected, output)[0])


class OpsOfAGpu(TorchDispatchMode):
    """Refuses what CUDA's deterministic algorithms refuse."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        assert function._schema.name != "aten::nll_loss2d_forward" or arguments[3] == 0, "its mean adds in any order"
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("passed_over", [0, 2, 3])
def test_several_targets_on_a_gpu(smoothing, passed_over, monkeypatch):
    """Torch refuses the mean there, so a network with targets for each position or pixel ended at its first loss."""
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(3, 5, 7, dtype=torch.float64, generator=generator).requires_grad_()
    target = torch.randint(5, (3, 7), generator=generator)
    target[:passed_over] = target[2, 3] = -100
    losses = CrossEntropy(label_smoothing=smoothing)
    expected = losses(output, target)
    (differentiated,) = torch.autograd.grad(expected, output)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with OpsOfAGpu():
        loss = losses(output, target)
        (gradient,) = torch.autograd.grad(loss, output)
    torch.testing.assert_close(loss, expected, equal_nan=True)
    torch.testing.assert_close(gradient, differentiated, equal_nan=True)


def test_mean_squared_error_takes_classes_as_one_hot():
    output = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert SQUARED(output, torch.tensor([0, 1])).item() == (0 + 4 + 9 + 9) / 4


def test_mean_squared_error_refuses_to_broadcast():
    with pytest.raises(ValueError, match=r"one shape \(got output \[2, 1\], target \[2\]\)"):
        SQUARED(torch.zeros(2, 1), torch.zeros(2))


def test_counts_of_top1_and_top5():
    ranks = torch.tensor([0, 1, 4, 5])  # of the target, among 7 classes
    output = torch.arange(7.0).flip(0).repeat(4, 1)
    assert {name: value.item() for name, value in PLAIN.metrics(output, ranks).items()} == {"top1": 1, "top5": 3}


@BOTH
@pytest.mark.parametrize(
    ("computed", "given"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.float32, torch.bfloat16)],
)
def test_loss_is_computed_in_float32_or_wider_and_differentiates(loss, computed, given):
    output = torch.randn(8, 10, generator=torch.Generator().manual_seed(0)).to(given).requires_grad_()
    value = loss(output, torch.arange(8))
    value.backward()
    assert (computed, given, True) == (value.dtype, output.grad.dtype, bool(output.grad.isfinite().all()))
    assert value.shape == ()


def perplexity(output, target, batch=1000):
    metric = Perplexity()
    for first in range(0, len(target), batch):
        metric.update(output[first : first + batch], target[first : first + batch])
    return float(metric.compute())


def test_perplexity_is_the_exponential_of_the_mean_over_all_tokens():
    generator = torch.Generator().manual_seed(3)
    output, target = torch.randn(9, 6, 11, generator=generator), torch.randint(11, (9, 6), generator=generator)
    target[2, 1:] = -100
    shares = output.double().log_softmax(-1).gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    expected = math.exp(-float(shares[target != -100].mean()))
    assert perplexity(output, target) == pytest.approx(expected, rel=1e-6)
    assert perplexity(output.movedim(-1, 1), target, 4) == pytest.approx(expected, rel=1e-6)


def test_without_a_target_that_counts_there_is_no_value():
    assert math.isnan(perplexity(torch.zeros(4, 3), torch.full((4,), -100)))
