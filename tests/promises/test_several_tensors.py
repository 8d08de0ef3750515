"""Samples of several named inputs, networks that return several tensors, and targets that are several: as in plain PyTorch."""

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

import petra_graph as pg
from petra_graph.cli.main import main
from petra_graph.errors import SpecError
from petra_graph.inference.saved_run import SavedRun, open_data
from petra_graph.training.data import order
from petra_graph.training.trained_network import Network
from tests.networks import networks_of_several_outputs as several
from tests.networks.networks_of_several_outputs import KEPT, ROWS, SAMPLES, TARGETS
from tests.support import ROOT
from tests.support.pages import Page, files_of
from tests.support.runs import events, only_run, overrides

SHOWN = files_of(Page(ROOT / "plugins" / "guide" / "samples.md"))

PLAIN = (
    "lr_schedule.name=constant",
    "optimizer.options={ lr = 0.05, momentum = 0.0, nesterov = false, weight_decay = 0.0 }",
    "precision.compute=float64",
    "method={ name = 'backprop', schedule = 'sequential' }",
    "run={ epochs = 1, micro_batches = 1 }",
)


@pytest.fixture
def spec(write):
    write("two_inputs.py", SHOWN["two_inputs.py"])
    return write("two_inputs.toml", SHOWN["two_inputs.toml"])


def test_an_update_is_that_of_plain_autograd_and_inputs_are_taken_by_their_names(spec):
    assert main(["run", spec, *overrides(*PLAIN)]) == 0
    saved = SavedRun.open(only_run())
    network, data = Network(saved.network, saved.facts), open_data(saved)
    samples, targets = data.train.fetch(order(48, 0, 0)[:8], seed=0, epoch=0)
    assert list(samples) == ["image", "numbers"]
    functional.cross_entropy(network(samples), targets).backward()
    found = load_file(only_run() / "weights.safetensors")
    own = {f"{node}/{key}": one for node in network.graph.order for key, one in network.block(node).named_parameters()}
    for name, parameter in own.items():
        torch.testing.assert_close(found[name], parameter - 0.05 * parameter.grad, rtol=0, atol=1e-14)
    trained = pg.load(only_run())
    assert torch.equal(trained(samples), trained(dict(reversed(samples.items()))))


def test_an_exported_program_reads_the_inputs_by_their_names(spec):
    assert main(["run", spec, "--set", "run.epochs=1"]) == 0
    assert main(["export", "latest", "--format", "torch-export", "--output", "written.pt2"]) == 0
    samples = {"image": torch.zeros(3, 1, 4, 4, dtype=torch.uint8), "numbers": torch.ones(3, 3)}
    program = torch.export.load("written.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(program(samples), pg.load("latest")(samples))


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


def spec_of(make, loss, data, method=SEQUENTIAL, **more):
    plain = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    classes = {"classes": 3} if data is several.Rows else {}
    return pg.make_spec(
        module=make,
        loss={"name": loss},
        data=pg.from_torch(data, data, batch=ROWS, **classes),
        method=method,
        optimizer={"name": "sgd", "options": {"lr": RATE, **plain}},
        run={"epochs": STEPS},
        **more,
    )


WAYS = [*((*kept, SEQUENTIAL) for kept in KEPT), (*KEPT[0], {"name": "backprop"})]


@pytest.mark.parametrize(("make", "loss", "data", "method"), WAYS)
def test_it_trains_evaluates_and_comes_back_as_in_plain_pytorch(make, loss, data, method, here):
    network, criterion, targets = make(), loss(), TARGETS[data]
    torch.save(network.state_dict(), "begun.pt")
    # With full batches, so that the order of samples decides nothing.
    run = pg.train(spec_of(make, loss, data, method, init={"weights": "begun.pt"}))
    optimizer = torch.optim.SGD(network.train().parameters(), RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        criterion(network(SAMPLES), targets).backward()
        optimizer.step()
    found = {key.partition("/")[2]: one for key, one in load_file(run.directory / "weights.safetensors").items()}
    torch.testing.assert_close(found, dict(network.state_dict()), atol=1e-5, rtol=1e-4, check_dtype=False)
    expected = network.eval()(SAMPLES)
    loaded = pg.load(run.directory).eval()
    torch.testing.assert_close(loaded(SAMPLES), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(loaded.train()(SAMPLES), network.train()(SAMPLES), atol=1e-5, rtol=1e-4)
    (*_, last) = [one["value"] for one in events(run.directory) if one["name"] == "test/loss"]
    assert last == pytest.approx(criterion(expected, targets).item(), rel=1e-5)


@pytest.mark.parametrize(("make", "data"), [(several.AtTheEnd, several.Rows), (several.Plain, several.Sets)])
def test_a_loss_that_reads_one_tensor_is_refused_by_name(make, data):
    with pytest.raises(SpecError, match=r'several tensors.*and loss "cross-entropy" reads one') as caught:
        pg.plan(spec_of(make, "cross-entropy", data))
    assert "write a loss of your own" in caught.value.problems[0].hint


def test_the_guides_network_with_an_auxiliary_head_learns_and_its_shares_are_right(here, write, monkeypatch):
    for name in ("auxiliary.py", "auxiliary.toml"):
        write(name, SHOWN[name])
    monkeypatch.syspath_prepend(here)
    assert main(["run", "auxiliary.toml"]) == 0
    values = {one["name"]: one["value"] for one in events(only_run())}
    assert 0.9 < values["test/top1"] <= 1
