"""A network of one's own has what its run has trained after `load_state_dict` of the exported file, or nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from own_networks import Drawn, Remainders, Repeated, Residuals, Tied
from petra_graph_export.evaluate_run import open_data
from safetensors.torch import load_file
from torch.nn import functional

import petra_graph as pg
from petra_graph.errors import RunFailed
from petra_graph.inference.saved_run import SavedRun

ROWS = {"name": "random", "batch": 16}
ROWS["options"] = {"shape": [8], "dtype": "float32", "classes": 3, "train": 16, "test": 16}
PLAIN_SGD = {"name": "sgd", "options": {"lr": 0.5, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}}


def trained(network, **settings):
    whole = {"method": {"name": "backprop"}, "partition": {"stages": 1}, "optimizer": PLAIN_SGD, "run": {"epochs": 4}}
    return pg.train(pg.make_spec(module=network, data=ROWS, **{**whole, **settings}))


def outputs(run, network):
    """Return what a run's network computes, and what the network's own class does with the exported file."""
    exported = run.export("safetensors")
    assert exported.samples == 16
    own = network().eval()
    own.load_state_dict(load_file(exported.file))
    x = torch.rand(5, 8)
    with torch.no_grad():
        return run.load()(x), own(x)


def test_all_of_a_state_dict_comes_and_goes(here):
    begun = Remainders()
    torch.save(begun.state_dict(), "own.pt")
    run = trained(Remainders, init={"weights": "own.pt"}, checkpoint={"every": "1 epoch"})
    found, expected = outputs(run, Remainders)
    assert torch.equal(found, expected)
    after = load_file(run.directory / "network.safetensors")
    x = torch.rand(5, 8)
    assert torch.equal(run.load(weights="latest")(x), run.load()(x))
    assert torch.equal(after["scale"], begun.scale)
    assert torch.equal(after["unread.weight"], begun.unread.weight)
    assert not torch.equal(after["activation.weight"], begun.activation.weight)
    assert torch.equal(after["activation.weight"], after["body.2.weight"])


def test_a_layer_that_is_called_twice_has_one_adapter_as_in_plain_torch(here):
    """`on` names one of the two nodes that call it."""
    lora = {"lora": {"on": ["middle/*"], "rank": 2, "alpha": 4.0}}
    at_rest = {**PLAIN_SGD, "options": {**PLAIN_SGD["options"], "lr": 0.0}}
    begun = load_file(trained(Repeated, finetune=lora, optimizer=at_rest).directory / "weights.safetensors")
    run = trained(Repeated, finetune=lora)
    after = load_file(run.directory / "weights.safetensors")
    a, b = (begun[f"middle/middle.lora_{one}.weight"].requires_grad_() for one in "AB")
    state = {name.partition("/")[2]: value for name, value in begun.items() if "lora" not in name}
    x, target = open_data(SavedRun.open(run.directory)).train.fetch(range(16), seed=0, epoch=0)
    for _ in range(4):
        own = {**state, "middle.weight": state["middle.weight"] + 2 * b @ a}
        loss = functional.cross_entropy(torch.func.functional_call(Repeated(), own, x), target)
        gradients = torch.autograd.grad(loss, (a, b))
        with torch.no_grad():
            for one, gradient in zip((a, b), gradients, strict=True):
                one -= 0.5 * gradient
    for node in ("middle", "middle-2"):
        torch.testing.assert_close(after[f"{node}/middle.lora_A.weight"], a.detach())
        torch.testing.assert_close(after[f"{node}/middle.lora_B.weight"], b.detach())
    found, expected = outputs(run, Repeated)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("network", "settings", "reason"),
    [
        (
            Tied,
            {"finetune": {"lora": {"on": ["again"]}}},
            "first.weight, again.weight have one value in the network's own",
        ),
        (Tied, {"partition": {"stages": "per-block", "untie": True}}, "first.weight, again.weight have one value"),
        (Repeated, {"partition": {"stages": "per-block", "untie": True}}, "middle.weight, middle.bias have one value"),
        (
            Residuals,
            {"conversion": {"coupling": "midpoint"}},
            "the network's own class loads the tensors, but its outputs",
        ),
        (Drawn, {}, "the network's own class loads the tensors, but its outputs differ"),
    ],
    ids=["adapter of a tied layer", "untied", "untied uses of a layer", "converted", "drawn"],
)
def test_what_its_own_class_cannot_have_is_not_written_but_programs_are(here, capsys, network, settings, reason):
    run = trained(network, **settings)
    told = "exported as torch-export or onnx, and not as safetensors" in capsys.readouterr().err
    assert told == ("finetune" in settings)
    with pytest.raises(RunFailed, match=f"nothing is written: {reason}"):
        run.export("safetensors")
    assert not list(Path(run.directory).glob("network.*"))
    assert run.export("torch-export").difference < 1e-5
