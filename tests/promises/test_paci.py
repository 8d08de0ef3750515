"""The method `paci`: graphs of old forwards, differentiated with the parameters of now (https://arxiv.org/abs/2606.07881)."""

from __future__ import annotations

import pytest
import torch

from petra_graph.cli.main import main
from petra_graph.executor.stage import BackwardMessage
from petra_graph.spec.model import NodeSpec
from tests.support import ROOT
from tests.support.pipelines import batches, pipeline, relative_error

NODES = (
    NodeSpec(name="stem", block="linear-stem", options={"features": 6}),
    NodeSpec(name="mlp", block="rev-mlp", options={"hidden": 5, "activation": "tanh"}),
    NodeSpec(name="head", block="pool-linear", options={"outputs": 10}),
)


def test_a_backward_has_the_activations_of_its_forward_and_the_weights_of_now():
    r"""y = t + W2 h with h = tanh(W1 x + b1); the gradients are, with every W of now and h of the forward,

    dW2 = dy^T h,  da = (dy W2) (1 - h^2),  dW1 = da^T x,  dx = da W1 + dt',  dt = dy.
    """
    built = pipeline(NODES, (6,), method="paci", schedule="1f1b", weight_decay=0.0, momentum=0.0, nesterov=False)
    stage = built.executors[1]
    mlp, (arrives,), (leaves,) = stage.modules["mlp"], stage.program.receives, stage.program.sends
    first, second = (module for module in mlp.modules() if isinstance(module, torch.nn.Linear))
    draw = torch.Generator().manual_seed(0)
    inputs, gradients = (
        [tuple(torch.randn(4, 6, generator=draw, dtype=torch.float64) for _ in range(2)) for _ in range(6)]
        for _ in range(2)
    )
    hidden, found = {}, {}

    def forward(m):
        hidden[m] = torch.tanh(first(inputs[m][0])).detach()
        stage.forward(m, {arrives: inputs[m]}, None)

    def backward(m):
        w1, w2 = first.weight.detach().clone(), second.weight.detach().clone()
        dy, passed = gradients[m]
        da = (dy @ w2) * (1 - hidden[m] ** 2)
        message = stage.backward(m, {leaves: BackwardMessage(gradients[m], None, 1.0)})[arrives]
        found[m] = {
            "w1": first.weight.grad,
            "w2": second.weight.grad,
            "x": message.gradients[0],
            "t": message.gradients[1],
        }
        expected = {"w1": da.T @ inputs[m][0], "w2": dy.T @ hidden[m], "x": da @ w1 + passed, "t": dy}
        assert relative_error(found[m], expected) < 1e-12
        stage.update()

    assert stage.program.depth == 2
    forward(0)
    for m in range(5):
        forward(m + 1)
        backward(m)


def test_delay_is_what_tells_it_from_backpropagation():
    """Weights differ from those of plain gradients as soon as an update came between the passes, and not before."""
    late, prompt = (
        pipeline(NODES, (6,), method="paci", schedule=schedule, rate=lambda _: 0.5)
        for schedule in ("1f1b", "sequential")
    )
    for built in (late, prompt):
        built.train(batches((6,), 8))
    assert relative_error(late.parameters(), prompt.parameters()) > 1e-6


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("checkpoint.every='5 updates'", 'method "paci" has checkpoints at the ends of epochs alone'),
        ("precision.compute='bfloat16'", "autocast keeps copies of older ones"),
        ("run.compile=true", "compiled ones may keep older ones"),
    ],
)
def test_what_would_keep_other_parameters_is_refused(capsys, setting, says):
    specification = str(ROOT / "specs" / "quickstart.toml")
    assert main(["validate", specification, "--set", "method.name=paci", "--set", setting]) == 2
    assert says in capsys.readouterr().err
