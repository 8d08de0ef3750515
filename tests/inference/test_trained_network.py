"""A run's network as an ordinary module."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from petra_graph.errors import SpecError
from petra_graph.inference.evaluate import open_data
from petra_graph.inference.trained_network import Network


@pytest.fixture
def network(opened):
    return opened.load()[0]


def test_nodes_have_their_names(network):
    assert list(network.nodes) == ["stem", "layer/0", "layer/1", "down", "head"]
    assert not network.training


def test_images_are_normalised_inside(opened, network):
    samples = open_data(opened).test.fetch(range(4), seed=0, epoch=0)[0]
    scaled = samples.float() / 255
    assert torch.equal(network(samples), network(scaled))


def test_it_trains_on_in_anyones_loop(opened, network):
    samples, targets = open_data(opened).test.fetch(range(8), seed=0, epoch=0)[0], torch.arange(8)
    optimizer = torch.optim.SGD(network.train().parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(samples), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_weights_of_another_network_are_refused_and_each_is_named(opened):
    network = Network.of(opened.network, opened.facts)
    weights = load_file(opened.directory / "weights.safetensors")
    others = {key: value for key, value in weights.items() if not key.startswith("head/")}
    others["stem/conv.weight"] = torch.zeros(1)
    with pytest.raises(SpecError) as caught:
        network.load_weights(others, "a file")
    said = [str(problem) for problem in caught.value.problems]
    assert "a file is of another network: it has no head/linear.weight" in said
    assert any("its stem/conv.weight is [1], and" in text for text in said)
