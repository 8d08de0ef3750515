"""PETRA written from the paper's equation (5) alone: plain autograd, a global clock, none of our code.

At each tick t, every stage j maps what its neighbours sent at the tick before:

    x_j      <- F_j(x_{j-1}, theta_j)
    x~_{j-1} <- F_j^{-1}(x~_j, theta_j)
    delta_j  <- dF_j/dx (x~_{j-1}, theta_j)^T delta_{j+1}
    Delta_j  <- dF_j/dtheta (x~_{j-1}, theta_j)^T delta_{j+1}
    theta_j  <- Optimizer(theta_j, Delta_j)

The first stage is not reversible: it keeps its inputs (algorithm 1, lines 8 and 16). The last does everything at once.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from tests.support.pipelines import CHAIN, batches, pipeline, relative_error

FIFTY_UPDATES = 1e-10
REVERSIBLE = ("rev0", "rev1", "rev2")


class Naive:
    """Five stages, as lists and dictionaries of tensors."""

    def __init__(self, parameters, *, lr, momentum, weight_decay):
        self.theta = {
            name: {
                key.partition("/")[2]: value.clone().requires_grad_()
                for key, value in parameters.items()
                if key.startswith(f"{name}/")
            }
            for name in ("stem", *REVERSIBLE, "head")
        }
        self.optimizers = {
            name: torch.optim.SGD(
                [
                    {"params": [p for key, p in own.items() if "weight" in key], "weight_decay": weight_decay},
                    {"params": [p for key, p in own.items() if "bias" in key], "weight_decay": 0.0},
                ],
                lr=lr,
                momentum=momentum,
                nesterov=True,
            )
            for name, own in self.theta.items()
        }

    def residual(self, name, x):
        w = self.theta[name]
        hidden = torch.tanh(linear(x, w["function.0.weight"], w["function.0.bias"]))
        return linear(hidden, w["function.3.weight"], w["function.3.bias"])

    def stem(self, x):
        w = self.theta["stem"]
        return torch.relu(linear(x, w["linear.weight"], w["linear.bias"])).chunk(2, dim=1)

    def loss(self, x, t, target):
        w = self.theta["head"]
        return cross_entropy(linear(torch.cat([x, t], dim=1), w["linear.weight"], w["linear.bias"]), target)

    def run(self, data, k):  # noqa: C901  five stages side by side, as the equation has them
        stages = ["stem", *REVERSIBLE, "head"]
        forward = dict.fromkeys(stages)  # what each stage sent upwards at the tick before
        backward = dict.fromkeys(stages)  # what each stage sent downwards at the tick before
        kept_inputs, targets, count = [], [], dict.fromkeys(stages, 0)
        for tick in range(len(data) + 2 * len(stages)):
            sent_up, sent_down = dict.fromkeys(stages), dict.fromkeys(stages)
            due = []
            with torch.no_grad():
                if tick < len(data):
                    x, target = data[tick]
                    kept_inputs.append(x)
                    targets.append(target)
                    sent_up["stem"] = self.stem(x)
                for below, name in zip(stages, REVERSIBLE, strict=False):
                    if forward[below] is not None:
                        x, t = forward[below]
                        sent_up[name] = (t + self.residual(name, x), x)
            if forward["rev2"] is not None:
                x, t = (stream.detach().requires_grad_() for stream in forward["rev2"])
                self.loss(x, t, targets.pop(0)).backward()
                sent_down["head"] = ((x.detach(), t.detach()), (x.grad, t.grad))
                due.append("head")
            for above, name in zip(("rev1", "rev2", "head"), REVERSIBLE, strict=True):
                if backward[above] is not None:
                    (y, s), (dy, ds) = backward[above]
                    with torch.no_grad():
                        x, t = s, y - self.residual(name, s)
                    x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
                    torch.autograd.backward([t + self.residual(name, x), x * 1], [dy, ds])
                    sent_down[name] = ((x.detach(), t.detach()), (x.grad, t.grad))
                    due.append(name)
            if backward["rev0"] is not None:
                torch.autograd.backward(self.stem(kept_inputs.pop(0)), backward["rev0"][1])
                due.append("stem")
            for name in due:
                count[name] += 1
                if count[name] % k == 0 or count[name] == len(data):
                    window = k if count[name] % k == 0 else count[name] % k
                    for p in self.theta[name].values():
                        p.grad /= window
                    self.optimizers[name].step()
                    self.optimizers[name].zero_grad()
            forward, backward = sent_up, sent_down
        assert set(count.values()) == {len(data)}


@pytest.mark.parametrize(("k", "updates"), [(1, 50), (3, 17)])
def test_updates_by_equation_5_alone(k, updates):
    data = batches((8,), updates * k)
    settings = {"momentum": 0.9, "weight_decay": 1e-3}
    built = pipeline(CHAIN, (8,), schedule="lockstep", accumulation=k, **settings)
    naive = Naive(built.parameters(), lr=0.05, **settings)
    naive.run(data, k)
    built.train(data)
    expected = {f"{name}/{key}": p.detach() for name, own in naive.theta.items() for key, p in own.items()}
    assert relative_error(built.parameters(), expected) < FIFTY_UPDATES
