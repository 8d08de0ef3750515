"""What a second pass through a block must not do: draw other numbers, move a generator, or count statistics twice."""

import pytest
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling, frozen_statistics, reseed, rng_scope
from petra_graph.blocks.randomness import fork_rng, generators_of, may_draw, random_key

CPU = torch.device("cpu")


def test_a_key_is_the_same_on_every_machine():
    assert random_key(0, "layer1.0", 3, 0) == 7157408831507348096
    assert random_key(0, "layer1.0", 3, 0) != random_key(0, "layer1.0", 30, 0) != random_key(0, "layer1.03", 0, 0)


def test_the_generator_is_as_it_was():
    before = torch.get_rng_state()
    with fork_rng(7, CPU):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(RuntimeError), fork_rng(7, CPU):
        torch.rand(3) @ torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_parts_do_not_depend_on_their_order():
    def drawn(*names):
        found = {}
        with fork_rng(7, CPU):
            for name in names:
                with rng_scope(name):
                    found[name] = torch.rand(3)
        return found

    one, other = drawn("f", "g"), drawn("g", "f")
    assert all(torch.equal(one[name], other[name]) for name in ("f", "g"))
    assert not torch.equal(one["f"], one["g"])


def test_on_a_gpu_the_cpus_generator_follows_the_key_too(monkeypatch):
    """A drop-path that draws on the CPU under a CUDA stage differed between forward and reconstruction, silently."""
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", [torch.Generator(), torch.Generator()])
    device = torch.device("cuda:1")
    before = [generator.get_state() for generator in generators_of(device)]
    assert len(before) == 2

    def drawn():
        found = [torch.rand(3), torch.rand(3, generator=torch.cuda.default_generators[1])]
        with rng_scope("f"):
            found += [torch.rand(3), torch.rand(3, generator=torch.cuda.default_generators[1])]
        return found

    with fork_rng(7, device):
        first = drawn()
        reseed()
        again = drawn()
    torch.rand(5)
    with fork_rng(7, device):
        anew = drawn()
    for one in (again, anew):
        assert all(map(torch.equal, one, first))
    after = [generator.get_state() for generator in generators_of(device)]
    assert torch.equal(after[1], before[1])


class Quiet(AdditiveCoupling):
    draws = False

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__([(3,), (3,)])
        self.parts = nn.Sequential(*parts)

    def residual(self, x):
        return self.parts(x)


class Inherits(Quiet):
    def residual(self, x):
        return torch.rand_like(x)


class OwnLayer(nn.Linear):
    def forward(self, x):
        return super().forward(x) * torch.rand(1)


class NamesAMethodSo(Quiet):
    def draws(self):
        return False


QUIET = [nn.Linear(3, 3), nn.BatchNorm2d(3), nn.GELU()]
DRAWING = [
    nn.Dropout(0.0),  # a callback may raise it
    nn.RReLU(),
    nn.LSTM(3, 3, num_layers=2, dropout=0.1),
    nn.TransformerEncoderLayer(4, 2),
    OwnLayer(3, 3),
]


@pytest.mark.parametrize(("layer", "draws"), [*((one, False) for one in QUIET), *((one, True) for one in DRAWING)])
def test_which_of_torchs_layers_may_draw(layer, draws):
    assert may_draw(layer) is draws
    assert may_draw(Quiet(nn.Linear(3, 3), nn.Sequential(layer))) is draws


@pytest.mark.parametrize("block", [None, Inherits(), NamesAMethodSo(), AdditiveCoupling([(3,), (3,)])])
def test_what_does_not_say_so_itself_may_draw(block):
    assert may_draw(block)


def state(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


@pytest.mark.parametrize("training", [True, False])
def test_instance_normalisation_writes_nothing_and_returns_the_same(training):
    """torch hands it its buffers whatever its switch says, so that every micro-batch counted twice."""
    torch.manual_seed(0)
    module, x = nn.InstanceNorm2d(3, track_running_stats=True), torch.randn(4, 3, 5, 5) + 2
    module(x)
    module.train(training)
    before = state(module)
    with frozen_statistics(module), frozen_statistics(module):
        found = module(x)
    assert all(torch.equal(value, before[key]) for key, value in state(module).items())
    assert torch.equal(module(x), found)
    assert torch.equal(module.running_mean, before["running_mean"]) is not training
