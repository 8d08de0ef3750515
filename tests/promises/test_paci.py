"""The method `paci`: graphs of old forwards, differentiated with the parameters of now (https://arxiv.org/abs/2606.07881)."""

import torch

from tests.support.pipelines import node, pipeline, relative_error

NODES = (
    node("stem", "linear-stem", features=6),
    node("mlp", "rev-mlp", hidden=5, activation="tanh"),
    node("head", "pool-linear", outputs=10),
)


def test_a_backward_has_the_activations_of_its_forward_and_the_weights_of_now():
    r"""y = t + W2 h with h = tanh(W1 x + b1); the gradients are, with every W of now and h of the forward,

    dW2 = dy^T h,  da = (dy W2) (1 - h^2),  dW1 = da^T x,  dx = da W1 + dt',  dt = dy.
    """
    built = pipeline(NODES, (6,), method="paci", schedule="1f1b", weight_decay=0.0, momentum=0.0, nesterov=False)
    stage = built.executors[1]
    (arrives,), (leaves,) = stage.program.receives, stage.program.sends
    first, second = (part for part in stage.modules["mlp"].modules() if isinstance(part, torch.nn.Linear))
    draw = torch.Generator().manual_seed(0)
    inputs, gradients = (
        [tuple(torch.randn(4, 6, generator=draw, dtype=torch.float64) for _ in range(2)) for _ in range(6)]
        for _ in range(2)
    )
    hidden = {}

    def forward(m):
        hidden[m] = torch.tanh(first(inputs[m][0])).detach()
        stage.forward(m, {arrives: inputs[m]}, None)

    def backward(m):
        w1, w2 = first.weight.detach().clone(), second.weight.detach().clone()
        dy, passed = gradients[m]
        da = (dy @ w2) * (1 - hidden[m] ** 2)
        dx, dt = stage.backward(m, {leaves: gradients[m]}, 1.0)[arrives]
        found = {"w1": first.weight.grad, "w2": second.weight.grad, "x": dx, "t": dt}
        expected = {"w1": da.T @ inputs[m][0], "w2": dy.T @ hidden[m], "x": da @ w1 + passed, "t": dy}
        assert relative_error(found, expected) < 1e-12
        stage.update()

    assert stage.program.depth == 2
    forward(0)
    for m in range(5):
        forward(m + 1)
        backward(m)
