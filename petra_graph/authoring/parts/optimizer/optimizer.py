import torch
from petra_graph.plugins import ParameterGroups

from petra_graph_examples.declared import SignDescentOptions


class SignDescent(torch.optim.Optimizer):
    """w <- w - lr * (sign(gradient) + weight_decay * w)."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


def sign_descent(groups: ParameterGroups, options: SignDescentOptions) -> torch.optim.Optimizer:
    """Return the optimizer of one stage."""
    decays = [(groups.decayed, options.weight_decay), (groups.undecayed, 0.0)]
    tables = [{"params": list(params), "weight_decay": decay} for params, decay in decays if params]
    return SignDescent(tables, {"lr": options.lr})
