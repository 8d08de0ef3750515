"""A reversible sequence under torch's own data parallelism, on two processes over gloo."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from petra_graph import reversible
from tests.support.forks import ended, ranks


class Branch(nn.Module):
    def __init__(self, unused):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 8))
        self.unused = nn.Linear(8, 8) if unused else None

    def forward(self, x):
        return self.layers(x)


class Network(nn.Module):
    def __init__(self, unused):
        super().__init__()
        self.stem, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        self.body = reversible([(Branch(unused), Branch(unused)) for _ in range(4)])

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def trained(network, keep_graphs, unused):
    network = copy.deepcopy(network)
    network.body.keep_graphs = keep_graphs
    parallel = DistributedDataParallel(network, bucket_cap_mb=0.0005, find_unused_parameters=unused)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        with parallel.no_sync():
            parallel(torch.randn(6, 3).double()).square().mean().backward()
        parallel(torch.randn(6, 3).double()).square().mean().backward()
        optimizer.step()
    return network.state_dict()


def compare(_):
    """Be one of the processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for unused in (False, True):
        torch.manual_seed(0)
        network = Network(unused).double()
        found, expected = trained(network, 0, unused), trained(network, 4, unused)
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-12, msg=name)
            if "running" not in name and "num_batches" not in name:
                both = [torch.empty_like(value) for _ in range(2)]
                dist.all_gather(both, value.contiguous())
                assert torch.equal(*both), name
        first = "body.0.first.layers.0.weight"
        assert not torch.equal(found[first], network.state_dict()[first])
    os._exit(0)  # gloo's threads may still live when Python takes torch's libraries down, which then aborts


@pytest.mark.processes
def test_two_replicas_agree_with_plain_autograd(here):
    """Dropout, statistics, accumulation without synchronisation, parameters that nothing uses, and tiny buckets."""
    with ranks([], [], program=f"{__name__}:compare") as running:
        assert ended(running) == [0, 0], "".join(rank.said for rank in running)
