"""Perplexity against a plain computation, whatever the batches."""

from __future__ import annotations

import math

import pytest
import torch

from petra_graph.catalog.metrics import Perplexity


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
