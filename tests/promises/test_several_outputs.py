"""A network that returns several tensors, and targets that are several, train and evaluate with a loss of one's own as in plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from tests.networks import networks_of_several_outputs as several
from tests.networks.networks_of_several_outputs import KEPT, ROWS, SAMPLES, TARGETS
from tests.support import ROOT
from tests.support.pages import Page, files_of
from tests.support.runs import events, only_run

STEPS, RATE = 3, 0.1
SEQUENTIAL = {"name": "petra", "schedule": "sequential"}
HERE = "tests.networks.networks_of_several_outputs"
SPEC = f"""
[architecture]
name = "module"
options = {{ build = "{HERE}:Detector" }}
[method]
schedule = "1f1b"
[loss]
name = "{HERE}:OfSets"
[data]
name = "torch"
batch = 4
options = {{ train = "{HERE}:Sets", test = "{HERE}:Sets" }}
[checkpoint]
every = "3 updates"
[run]
epochs = 2
"""


def spec_of(make, loss, data, method=SEQUENTIAL, batch=ROWS, **more):
    plain = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    classes = {"classes": 3} if data is several.Rows else {}
    return pg.make_spec(
        module=make,
        loss={"name": loss},
        data=pg.from_torch(data, data, batch=batch, **classes),
        method=method,
        optimizer={"name": "sgd", "options": {"lr": RATE, **plain}},
        run={"epochs": STEPS},
        **more,
    )


def trained(make, loss, data, network, method=SEQUENTIAL):
    """Train with full batches, so that the order of samples decides nothing."""
    torch.save(network.state_dict(), "begun.pt")
    return pg.train(spec_of(make, loss, data, method, init={"weights": "begun.pt"}))


def train_plainly(network, loss, targets):
    optimizer = torch.optim.SGD(network.train().parameters(), RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(network(SAMPLES), targets).backward()
        optimizer.step()


WAYS = [*((*kept, SEQUENTIAL) for kept in KEPT), (*KEPT[0], {"name": "backprop"})]


@pytest.mark.parametrize(("make", "loss", "data", "method"), WAYS)
def test_it_trains_evaluates_and_comes_back_as_in_plain_pytorch(make, loss, data, method, here):
    network, targets = make(), TARGETS[data]
    run = trained(make, loss, data, network, method)
    train_plainly(network, loss(), targets)
    found = {key.partition("/")[2]: one for key, one in load_file(run.directory / "weights.safetensors").items()}
    torch.testing.assert_close(found, dict(network.state_dict()), atol=1e-5, rtol=1e-4, check_dtype=False)
    expected = network.eval()(SAMPLES)
    loaded = pg.load(run.directory).eval()
    torch.testing.assert_close(loaded(SAMPLES), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(loaded.train()(SAMPLES), network.train()(SAMPLES), atol=1e-5, rtol=1e-4)
    (*_, last) = [one["value"] for one in events(run.directory) if one["name"] == "test/loss"]
    assert last == pytest.approx(loss()(expected, targets).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "data"),
    [(several.AtTheEnd, several.Rows), (several.InADictionary, several.Rows), (several.Plain, several.Sets)],
)
def test_a_loss_that_reads_one_tensor_is_refused_by_name(make, data):
    with pytest.raises(SpecError, match=r'several tensors.*and loss "cross-entropy" reads one') as caught:
        pg.plan(spec_of(make, "cross-entropy", data))
    assert "write a loss of your own" in caught.value.problems[0].hint


def test_the_guides_network_with_an_auxiliary_head_learns_and_its_shares_are_right(here, write, monkeypatch):
    shown = files_of(Page(ROOT / "plugins" / "guide" / "samples.md"))
    for name in ("auxiliary.py", "auxiliary.toml"):
        write(name, shown[name])
    monkeypatch.syspath_prepend(here)
    assert main(["run", "auxiliary.toml"]) == 0
    values = {one["name"]: one["value"] for one in events(only_run())}
    assert 0.9 < values["test/top1"] <= 1
