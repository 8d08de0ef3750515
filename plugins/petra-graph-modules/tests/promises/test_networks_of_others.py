"""A network with habits of its own trains, evaluates and comes back as in plain PyTorch, or is refused with the line and a remedy."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from petra_graph_modules.cutting import CannotCut, Input, cut_network
from safetensors.torch import load_file
from torch import nn

import petra_graph as pg
from petra_graph.kinds.generators import states_without_key
from tests.networks import networks_of_others as others
from tests.networks.eight_features import ROWS, SAMPLES, TARGETS, Rows

STEPS, RATE = 3, 0.1
RUNS_ONCE = {others.SpectralNorm}


def trained(make, network, **more):
    """Train with full batches, so that the order of samples decides nothing."""
    torch.save(network.state_dict(), "begun.pt")
    method = {"name": "backprop"} if make in RUNS_ONCE else {"name": "petra", "schedule": "sequential"}
    plain = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    spec = pg.make_spec(
        module=make,
        data=pg.from_torch(Rows, Rows, classes=3, batch=ROWS),
        method=method,
        init={"weights": "begun.pt", "strict": make is not others.TwoNames},
        partition={"stages": 1 if make in {others.Tied, others.Repeated} else "per-block"},
        optimizer={"name": "sgd", "options": {"lr": RATE, **plain}},
        run={"epochs": STEPS},
        **more,
    )
    return pg.train(spec)


def train_plainly(network):
    optimizer = torch.optim.SGD(network.train().parameters(), RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(SAMPLES), TARGETS).backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("make", others.KEPT, ids=lambda one: one.__name__)
def test_it_trains_and_evaluates_as_in_plain_pytorch_and_comes_back(make, here):
    network = make()
    run = trained(make, network)
    train_plainly(network)
    found = {key.partition("/")[2]: one for key, one in load_file(run.directory / "weights.safetensors").items()}
    for key, expected in network.state_dict().items():
        if key in found:
            torch.testing.assert_close(found[key], expected, atol=1e-5, rtol=1e-4, check_dtype=False)
    assert set(found) <= set(network.state_dict())
    expected = network.eval()(SAMPLES)
    torch.testing.assert_close(pg.load(run.directory).eval()(SAMPLES), expected, atol=1e-5, rtol=1e-4)
    returned = make()
    returned.load_state_dict(found, strict=make is not others.TwoNames)
    torch.testing.assert_close(returned.eval()(SAMPLES), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "line", "reason", "remedy"), others.REFUSED, ids=lambda one: getattr(one, "__name__", "")
)
def test_it_is_refused_with_the_line_and_a_remedy(make, line, reason, remedy):
    states = states_without_key()
    with pytest.raises(CannotCut, match=re.escape(reason)) as caught:
        cut_network(make, [Input((8,), torch.float32)])
    assert remedy in caught.value.hint
    if line:
        source, begins = inspect.getsourcelines(others)[0], 1
        _, number = re.match(r"(.*):(\d+): ", str(caught.value)).groups()
        assert line in source[int(number) - begins]
    assert states_without_key() == states


def test_in_contiguous_memory_a_module_may_view_what_a_convolution_returns(here):
    trained(others.ViewedWithin, others.ViewedWithin(), precision={"memory_format": "contiguous"})


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")
def test_scripted_modules_are_refused_by_name():
    class Scripted(others.Three):
        def __init__(self):
            super().__init__()
            self.b = torch.jit.script(self.b)

    class Calling(others.Three):
        def forward(self, x):
            return super().forward(doubled(x))

    doubled = torch.jit.script(_doubled)
    with pytest.raises(CannotCut, match=r"modules are of torch\.jit, whose parts cannot be copied: b") as caught:
        cut_network(Scripted, [Input((8,), torch.float32)])
    assert "leave out torch.jit" in caught.value.hint
    with pytest.raises(CannotCut, match="its forward") as caught:
        cut_network(Calling, [Input((8,), torch.float32)])
    assert "leave out torch.jit" in caught.value.hint


def _doubled(x: torch.Tensor):
    return x * 2
