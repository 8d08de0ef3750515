"""Threads that train one sequence: the gradient is that of one thread."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn

from petra_graph.autograd import reversible
from tests.support.sequences import FEATURES

STEPS = 12


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run work(0), ..., work(count - 1) at once."""
    together = Barrier(count)

    def run(number):
        together.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


def smooth():
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES))


def streams(count):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, STEPS, 4, FEATURES, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("preserve_rng_state", [True, False])
def test_gradients_and_modules_are_those_of_one_thread(threads, preserve_rng_state):
    """16 of 48 parameters were of no optimizer afterwards, and gradients 67 % off."""
    torch.manual_seed(0)
    made = reversible([(smooth(), smooth()) for _ in range(4)], preserve_rng_state=preserve_rng_state).double()
    own, inputs = list(made.parameters()), streams(threads)

    def train(number):
        for x in inputs[number]:
            made(x).square().sum().backward()

    in_threads(threads, train)
    found = [one.grad for one in own]
    made.zero_grad()
    for number in range(threads):
        train(number)
    size = max(float(one.grad.abs().max()) for one in own)
    for one, parameter in zip(found, own, strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=0, atol=1e-12 * size)


class Recorded(nn.Module):
    """Dropout that notes its masks: those of a forward, and those of its reconstruction."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FEATURES))
        self.masks: list[tuple[bool, torch.Tensor]] = []

    def forward(self, x):
        mask = nn.functional.dropout(torch.ones_like(x))
        self.masks.append((torch.is_grad_enabled(), mask))
        return x * mask * self.weight


def test_a_reconstruction_draws_the_masks_of_its_forward():
    made, inputs = reversible([Recorded() for _ in range(4)]).double(), streams(2)

    def train(number):
        for x in inputs[number]:
            made(x).sum().backward()

    in_threads(2, train)
    for block in made:
        of = {again: [mask for which, mask in block.function.masks if which is again] for again in (False, True)}
        assert len(of[False]) == len(of[True]) == 2 * STEPS
        assert sorted(map(repr, of[False])) == sorted(map(repr, of[True]))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)])
def test_running_statistics_follow_each_forward_once(norm):
    """A thread found them switched off by another's backward, or saw them switched on in its own."""
    functions = [nn.Sequential(copy.deepcopy(norm), nn.Conv1d(4, 4, 1), nn.Tanh()) for _ in range(4)]
    made, inputs = reversible(functions, preserve_rng_state=False).double(), streams(2)

    def train(number):
        for x in inputs[number]:
            made(x[None]).sum().backward()

    in_threads(2, train)
    for block in made:
        assert block.function[0].track_running_stats is True
        assert block.function[0].running_mean is not None
        if isinstance(norm, nn.BatchNorm1d):
            assert block.function[0].num_batches_tracked == 2 * STEPS
