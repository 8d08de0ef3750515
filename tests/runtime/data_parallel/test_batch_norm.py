"""Batch normalisation over several replicas' rows, against torch's over all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from attrs import define, field
from torch import Tensor, nn

from petra_graph.blocks import Buffered, frozen_statistics
from petra_graph.runtime.data_parallel.batch_norm import SynchronisedBatchNorm, synchronise

REPLICAS = 3


@define
class Meeting:
    """What replicas in threads of one process exchange."""

    barrier: Barrier = field(factory=lambda: Barrier(REPLICAS, timeout=20))
    handed: dict[int, Tensor] = field(factory=dict)


@define
class Seat:
    meeting: Meeting
    replica: int
    size: int = REPLICAS
    exchanges: int = 0

    def __call__(self, own: Tensor) -> Tensor:
        self.exchanges += 1
        self.meeting.handed[self.replica] = own
        self.meeting.barrier.wait()
        found = torch.stack([self.meeting.handed[replica] for replica in range(REPLICAS)])
        self.meeting.barrier.wait()
        return found


class Alone:
    size = 1

    def __call__(self, own: Tensor) -> Tensor:
        return own.unsqueeze(0)


class Norm(Buffered):
    """A block with nothing but a normalisation."""

    def __init__(self, **options) -> None:
        super().__init__([(4, 3, 3)], None)
        self.norm = nn.Sequential(nn.BatchNorm2d(4, dtype=torch.float64, **options))
        generator = torch.Generator().manual_seed(1)
        if options.get("affine", True):
            for parameter in self.norm.parameters():
                parameter.data = torch.randn(4, generator=generator, dtype=torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.norm(x),)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(6, 4, 3, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    return 3 * x + 1, dy


def trained(block: Norm, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    (y,) = block(leaf)
    y.backward(dy)
    return y.detach(), leaf.grad


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}])
def test_rows_of_all_replicas_count(options):
    x, dy = data()
    whole, meeting = Norm(**options), Meeting()
    expected, through = trained(whole, x, dy)
    blocks = [Norm(**options) for _ in range(REPLICAS)]
    for replica, block in enumerate(blocks):
        synchronise([block], Seat(meeting, replica))
    with ThreadPoolExecutor(REPLICAS) as threads:
        found = list(threads.map(trained, blocks, x.chunk(REPLICAS), dy.chunk(REPLICAS)))
    assert torch.allclose(torch.cat([y for y, _ in found]), expected, rtol=1e-12, atol=1e-12)
    assert torch.allclose(torch.cat([dx for _, dx in found]), through, rtol=1e-12, atol=1e-12)
    for name, parameter in whole.named_parameters():
        summed = sum(dict(block.named_parameters())[name].grad for block in blocks)
        assert torch.allclose(summed, parameter.grad, rtol=1e-12, atol=1e-12), name
    for name, value in whole.state_dict().items():
        for block in blocks:
            assert torch.allclose(block.state_dict()[name], value, rtol=1e-12, atol=0), name
            assert torch.equal(block.state_dict()[name], blocks[0].state_dict()[name]), name


def test_parameters_and_names_stay():
    block = Norm()
    before, names = list(block.parameters()), list(block.state_dict())
    synchronise([block], Seat(Meeting(), 0))
    assert isinstance(block.norm[0], SynchronisedBatchNorm)
    assert all(one is other for one, other in zip(before, block.parameters(), strict=True))
    assert list(block.state_dict()) == names


def test_one_in_two_places_stays_one():
    block = Norm()
    block.norm.append(nn.ReLU()).append(block.norm[0])
    synchronise([block], Alone())
    assert isinstance(block.norm[2], SynchronisedBatchNorm)
    assert block.norm[2] is block.norm[0]


def test_without_a_bias():
    blocks, (x, dy) = [Norm(), Norm()], data()
    for block in blocks:
        block.norm[0].bias = None
    synchronise(blocks[1:], Alone())
    one, other = (trained(block, x, dy) for block in blocks)
    assert all(torch.allclose(*pair, rtol=1e-12, atol=1e-12) for pair in zip(one, other, strict=True))
    assert torch.allclose(blocks[0].norm[0].weight.grad, blocks[1].norm[0].weight.grad, rtol=1e-12)


def test_evaluation_exchanges_nothing():
    block, plain, (x, _) = Norm(), Norm(), data()
    seat = Seat(Meeting(), 0)
    synchronise([block], seat)
    assert torch.equal(block.eval()(x)[0], plain.eval()(x)[0])
    assert not seat.exchanges


def test_frozen_statistics_stay():
    block, (x, _) = Norm(), data()
    synchronise([block], Alone())
    with torch.no_grad(), frozen_statistics(block):
        block(x)
    assert torch.equal(block.norm[0].running_mean, torch.zeros(4, dtype=torch.float64))
    block(x)
    assert not torch.equal(block.norm[0].running_mean, torch.zeros(4, dtype=torch.float64))
