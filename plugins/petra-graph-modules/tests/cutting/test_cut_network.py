"""A network cut into parts computes what it computes, to the bit, and learns what plain autograd learns; or is refused with the line."""

from __future__ import annotations

import inspect
from functools import cache, partial

import pytest
import torch
from petra_graph_modules.cutting import CannotCut, Input, copy_part, cut_network
from torch import nn

from petra_graph.blocks.randomness import fork_rng
from tests.networks import cut_networks as networks

TOKENS, IMAGE, ROW = Input((6,), torch.int64), Input((1, 8, 8), torch.float32), Input((3,), torch.float32)
NETWORKS = {
    "GPT": ([TOKENS], ["transformer.wte", *[f"transformer.h.{index}" for index in range(3)], "head"]),
    "RotaryNet": ([TOKENS], ["model.embed", *[f"model.layers.{index}" for index in range(3)], "head"]),
    "UNet": ([IMAGE], ["down.0", "down.1", "middle", "up.0", "up.1", "last"]),
    "LSTM": ([TOKENS], ["embedding", "lstm", "last"]),
    "TimeFirst": ([TOKENS], ["embedding", "layers.0", "layers.1", "words.0", "words.1", "last"]),
    "Tagger": ([TOKENS], ["embedding", "rnn", "middle.0", "last"]),
    "Mixer": ([IMAGE], ["patches", "one", "two", "three", "last"]),
    "Towers": (
        [Input((1, 8, 8), torch.float32, "image"), Input((6,), torch.int64, "tokens")],
        ["image.0", "image.1", "words", *[f"text.{index}.1" for index in range(3)], "last"],
    ),
}
CPU = torch.device("cpu")


class Parts(nn.Module):
    """The parts of a network, run as nodes are."""

    def __init__(self, network):
        super().__init__()
        self.parts = list(network.parts.values())
        self.owners = nn.ModuleList(nn.Module() for _ in self.parts)
        self.forwards = [
            copy_part(*pair) for pair in zip(self.owners, [network] * len(self.parts), self.parts, strict=True)
        ]

    def forward(self, *samples):
        return self.streams(*samples)[-1][0]

    def streams(self, *samples):
        made = []
        for part, owner, forward in zip(self.parts, self.owners, self.forwards, strict=True):
            streams = [stream for source in part.sources for stream in made[source]] if made else samples
            before = [(stream, stream._version) for stream in streams]
            made.append(forward(owner, *streams))
            assert all(len(stream) == len(samples[0]) for stream in made[-1])
            assert all(stream._version == version for stream, version in before)
        return made


def samples_of(kind, n=4):
    return torch.randint(0, 11, (n, *kind.shape)) if kind.dtype == torch.int64 else torch.rand(n, *kind.shape)


@cache
def cut(name, *inputs, **kwargs):
    """Return a network of `cut_networks` in its parts; it is cut once for all tests."""
    return cut_network(partial(getattr(networks, name), **kwargs), inputs)


def both(name, *inputs, **kwargs):
    """Return a network, and its parts with its weights."""
    make = getattr(networks, name)
    parts = Parts(cut(name, *inputs, **kwargs))
    plain = make(**kwargs)
    weights = plain.state_dict()
    own = [key for owner in parts.owners for key in owner.state_dict()]
    assert set(own) == set(weights)
    for owner in parts.owners:
        owner.load_state_dict({key: weights[key] for key in owner.state_dict()})
    return plain, parts


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_the_networks_to_the_bit_and_gradients_its_own(name):
    inputs, nodes = NETWORKS[name]
    plain, parts = both(name, *inputs, **({"tied": False} if name == "GPT" else {}))
    assert [part.name for part in parts.parts] == nodes
    samples = [samples_of(one) for one in inputs]
    for train in (False, True):
        outputs = []
        for module in (plain, parts):
            torch.manual_seed(3)
            outputs.append(module.train(train)(*[one.clone() for one in samples]))
        assert torch.equal(*outputs)
    for output in outputs:
        output.square().sum().backward()
    expected = {key: parameter.grad for key, parameter in plain.named_parameters()}
    found = {key: parameter.grad for owner in parts.owners for key, parameter in owner.named_parameters()}
    for key, gradient in expected.items():  # of a value with several readers, they are summed in another order
        torch.testing.assert_close(found[key], gradient)


def test_a_region_without_autocast_is_one_in_the_parts():
    plain, parts = both("Float32Between", ROW)
    rows, outputs = samples_of(ROW, 8), []
    for module in (plain, parts):
        with torch.autocast("cpu", torch.bfloat16):
            outputs.append(module(rows))
            assert torch.is_autocast_enabled("cpu")
    assert torch.equal(*outputs)
    assert not torch.equal(outputs[0].float(), plain(rows))


@pytest.mark.parametrize(("name", "n", "length"), [("GPT", 1, 6), ("RotaryNet", 3, 4), ("TimeFirst", 7, 2)])
def test_batches_of_any_size_and_shorter_samples(name, n, length):
    plain, parts = both(name, TOKENS)
    tokens = torch.randint(0, 11, (n, length))
    assert torch.equal(parts.eval()(tokens), plain.eval()(tokens))


@pytest.mark.parametrize("name", ["TimeFirst", "Tagger"])
def test_streams_have_a_row_for_each_sample_wherever_the_network_has_its_samples(name):
    _, parts = both(name, TOKENS)
    tokens = samples_of(TOKENS)
    for batch, alone in zip(parts.eval().streams(tokens), parts.streams(tokens[2:3]), strict=True):
        for stream, one in zip(batch, alone, strict=True):
            torch.testing.assert_close(stream[2:3], one)


@pytest.mark.parametrize("n", [1, 7])
def test_batches_of_images_of_any_size(n):
    plain, parts = both("Mixer", IMAGE)
    images = samples_of(IMAGE, n)
    assert torch.equal(parts.eval()(images), plain.eval()(images))


def test_skip_edges_are_edges_and_what_all_layers_read_is_handed_on():
    sources = {
        name: [part.sources for part in cut(name, *NETWORKS[name][0]).parts.values()]
        for name in ("UNet", "GPT", "Towers")
    }
    assert sources == {
        "UNet": [(), (0,), (1,), (2,), (0, 3), (4,)],
        "GPT": [(), (0,), (1,), (2,), (3,)],
        "Towers": [(), (0,), (0,), (2,), (3,), (1, 4), (5,)],
    }


def test_listed_modules_are_nodes():
    network = cut_network(networks.GPT, [TOKENS], ["transformer.h.*", "head"])
    assert list(network.parts) == ["transformer.h.0", "transformer.h.1", "transformer.h.2", "head"]


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        (["h.*"], "no module is called 'h.\\*'"),
        (["transformer.h.0", "transformer.h.0.mlp"], "inside 'transformer.h.0'"),
    ],
)
def test_lists_that_name_no_nodes(listed, reason):
    with pytest.raises(CannotCut, match=reason):
        cut_network(networks.GPT, [TOKENS], listed)


@pytest.mark.parametrize(
    ("name", "line", "reason", "hint"),
    [
        ("Branching", "x if x.sum() > 0", "depends on the values of a tensor, by bool", "torch.where"),
        ("Choosing", "x[x.sum(1) > 0]", "depends on the values of a tensor, by getitem", "torch.where"),
        ("Unregistered", "x - self.mean", "neither a parameter, nor a buffer", "register_buffer"),
        ("Dictionary", "", "returns dict with int in it, and the loss reads tensors", "return self.model(x).logits"),
        (
            "InTraining",
            "relu() if self.training",
            "does other operations in training and in evaluation",
            "module of its own",
        ),
        (
            "OtherInEvaluation",
            "",
            "returns a tensor in evaluation that it does not return in training",
            "in training too",
        ),
        ("WithAMean", "", r"returns \[\], in which the first dimension is not that of the samples", "value.expand(n)"),
        ("Flat", "", "first dimension is not that of the samples", "[n, ...]"),
        ("Averaging", "1 / x.shape[0]", "an argument follows from the size of the batch", ""),
    ],
)
def test_what_cannot_be_cut_is_refused_with_its_line(name, line, reason, hint):
    with pytest.raises(CannotCut, match=reason) as caught:
        cut_network(getattr(networks, name), [ROW])
    lines, _ = inspect.getsourcelines(networks)
    numbers = [number for number, text in enumerate(lines, start=1) if line and line in text]
    assert all(f"networks.py:{number}" in str(caught.value) for number in numbers)
    assert hint in caught.value.hint


def test_one_layer_is_no_pipeline():
    with pytest.raises(CannotCut, match="no two modules with weights") as caught:
        cut_network(lambda: nn.Sequential(nn.Linear(3, 3)), [ROW])
    assert "pg.head(MyNet)" in caught.value.hint


class Drops(nn.Module):
    """A function, a module and a sum over one part each, and a mask of evaluation alone."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(5))
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        x = nn.functional.dropout(self.layers[0](x), 0.3, self.training)
        x = self.drop(self.layers[1](x))
        x = x + self.layers[2](x).relu()
        x = nn.functional.dropout(self.layers[3](x), 0.3, not self.training)
        return self.layers[4](x)


def test_parts_that_draw_random_numbers():
    network = cut_network(Drops, [ROW])
    # What stands between two layers belongs to either; the module behind layers.1 is asked itself.
    assert [name for name, part in network.parts.items() if network.draws(part)] == ["layers.0", "layers.4"]


def test_what_parts_share():
    assert cut("GPT", TOKENS).shared == {
        "transformer.wte": {"transformer.wte.weight": "transformer.wte.weight"},
        "transformer.h.0": {},
        "transformer.h.1": {},
        "transformer.h.2": {},
        "head": {"head.weight": "transformer.wte.weight"},
    }
    assert list(cut_network(networks.Twice, [ROW]).shared.values()) == [
        {"one.weight": "one.weight", "one.bias": "one.bias"},
        {},
        {"one.weight": "one.weight", "one.bias": "one.bias"},
    ]


def orthogonal():
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    nn.init.orthogonal_(layers[0].weight)
    return layers


@pytest.mark.parametrize("name", ["GPT", "orthogonal", "Mixer"])
def test_values_are_drawn_for_each_part_under_its_own_random_numbers(name):
    """Also where the constructor reads what it draws, which then runs again."""
    network = cut_network(orthogonal, [ROW]) if name == "orthogonal" else cut(name, *NETWORKS[name][0])
    before = torch.get_rng_state()

    def drawn(key):
        with fork_rng(key, CPU):
            return Parts(network).state_dict()

    one, again, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert all(not torch.equal(one[key], other[key]) for key in one if one[key].dim() > 1)
    assert torch.equal(torch.get_rng_state(), before)


class Remainders(nn.Module):
    """What a forward does not read: a layer, a parameter, second names of layers, buffers of which two are not in the `state_dict`."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        activation = nn.PReLU()
        self.body = nn.Sequential(self.norm, activation, nn.Linear(4, 4), activation)
        self.unread, self.scale = nn.BatchNorm1d(5), nn.Parameter(torch.ones(2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("factors", torch.linspace(0, 1, 4), persistent=False)
        self.positions = nn.Module()
        self.positions.register_buffer("table", torch.linspace(1, 2, 4), persistent=False)

    def forward(self, x):
        return self.last(self.body(self.first(x)) * self.factors + self.positions.table)


def test_all_parts_together_have_the_networks_state_dict():
    parts, plain = Parts(cut_network(Remainders, [ROW])), Remainders()
    assert {name for owner in parts.owners for name in owner.state_dict()} == set(plain.state_dict())
    assert not parts.owners[-1].get_parameter("unread.weight").requires_grad
    twice = next(owner for owner in parts.owners if hasattr(owner, "norm")).state_dict(keep_vars=True)
    assert twice["norm.running_mean"] is twice["body.0.running_mean"]


class WrongChannels(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(8, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.second(self.first(x)).mean((2, 3)))


def test_the_layer_whose_sizes_do_not_fit_is_named():
    """torch names weight and input, but not for the tensors without values on which a forward is recorded."""
    with pytest.raises(CannotCut) as caught:
        cut_network(WrongChannels, [Input((3, 8, 8), torch.float32)])
    assert " in second, Conv2d(8, 4" in str(caught.value)
    assert "whose weight is [4, 8, 3, 3], on an input of [3, 4, 6, 6]" in str(caught.value)
