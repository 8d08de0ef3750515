import torch


class SignDescent(torch.optim.Optimizer):
    """w <- w - lr * (sign(gradient) + weight_decay * w)."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


def sign_descent(groups, options):
    """Return the optimizer of one stage."""
    return SignDescent(groups.param_groups(weight_decay=options.weight_decay), {"lr": options.lr})
