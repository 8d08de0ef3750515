"""torch's SGD, Adam and AdamW, and Muon, which steps matrices itself and leaves all other parameters to AdamW.

Muon makes the momentum of a matrix orthogonal:

    v <- m v + (1 - m) g
    u  = m v + (1 - m) g   with Nesterov momentum, v without
    w <- w (1 - lr wd) - lr s NS(u)        s = 0.2 sqrt(max(rows, columns))

NS takes a matrix U S V' close to U V': it divides by the Frobenius norm and iterates x <- a x + (b X + c X^2) x with X = x x', which leaves
singular values near 1, between 0.7 and 1.2. With s, the step's elements are as large as those of AdamW, whose learning rate it can then share.

Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; s: Liu et al. 2025, arXiv:2502.16982; the bits of a step are those of
`torch.optim.Muon`, which torch has since 2.9, and which takes no kernels of convolutions.
"""

from __future__ import annotations

from inspect import unwrap
from typing import Annotated, Any

import torch
from torch import Tensor

from petra_graph.plugins import AtLeast, GreaterThan, LessThan, ParameterGroups

_Share = Annotated[float, AtLeast(0), LessThan(1)]
Rate = Annotated[float, "base learning rate; schedule and scaling multiply it", AtLeast(0)]
Momentum = Annotated[_Share, "share of the last step that is kept"]
Nesterov = Annotated[bool, "look ahead along the momentum, which must be above 0"]
Betas = Annotated[tuple[_Share, _Share], "share of the mean gradient, and of its mean square, that is kept"]
Eps = Annotated[float, "added to the root of the mean square", GreaterThan(0)]
Decay = Annotated[float, "weight decay, none on normalisation and biases", AtLeast(0)]
AHEAD = "ahead"
"""Of a group of Muon with matrices: how many updates their momentum looks ahead. Its groups without the key are AdamW's."""


class Unmarked(torch.optim.Optimizer):
    """What a run calls of all optimizers without the mark that a compiler must skip it, which imports `torch._dynamo` at the first call.

    That takes more than half as long as the import of torch, and optimizers are never compiled here.
    """

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)


class SGD(Unmarked, torch.optim.SGD):
    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class Adam(Unmarked, torch.optim.Adam):
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


def sgd(
    groups: ParameterGroups,
    *,
    lr: Rate = 0.1,
    momentum: Momentum = 0.9,
    nesterov: Nesterov = True,
    weight_decay: Decay = 0.0,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent with (Nesterov) momentum."""
    parameters = groups.param_groups(weight_decay=weight_decay)
    return SGD(parameters, lr=lr, momentum=momentum, nesterov=nesterov, fused=_on_gpus(groups))


def adam(
    groups: ParameterGroups, *, lr: Rate = 1e-3, betas: Betas = (0.9, 0.999), eps: Eps = 1e-8, weight_decay: Decay = 0.0
) -> torch.optim.Optimizer:
    """Adam, weight decay added to the gradient, and so scaled with it (AdamW's is not); Kingma and Ba 2015, arXiv:1412.6980."""
    parameters = groups.param_groups(weight_decay=weight_decay)
    return Adam(parameters, lr=lr, betas=betas, eps=eps, fused=_on_gpus(groups))


def adamw(
    groups: ParameterGroups,
    *,
    lr: Rate = 1e-3,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.01,
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay, which shrinks parameters by lr * weight_decay; Loshchilov and Hutter 2019, arXiv:1711.05101."""
    parameters = groups.param_groups(weight_decay=weight_decay)
    return Adam(parameters, lr=lr, betas=betas, eps=eps, fused=_on_gpus(groups), decoupled_weight_decay=True)


def _on_gpus(groups: ParameterGroups) -> bool | None:
    """Whether a step may be a kernel a group, as all parameters are on GPUs; else torch decides."""
    return all(one.is_cuda for one in (*groups.decayed, *groups.undecayed)) or None


class Muon(Adam):
    """Muon of groups with `AHEAD` and "momentum": u is m^ahead v + (1 - m^ahead) g; AdamW of the others."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        for group in self.param_groups:
            for parameter in group["params"] if AHEAD in group else ():
                if parameter.grad is not None:
                    self._step_matrix(parameter, parameter.grad.flatten(1), group)  # kernels [out, in * height * width]
        super().step()

    def _step_matrix(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        m, lr, state = group["momentum"], group["lr"], self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(g)
        v = state["momentum_buffer"].lerp_(g, 1 - m)
        share = m ** group[AHEAD]
        x = (v if share == 1 else g.lerp(v, share)).to(torch.bfloat16, copy=True)
        x = x.T if (tall := len(x) > x.shape[1]) else x
        x.div_(x.norm().clamp(min=1e-7))
        for _ in range(5):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
        p.mul_(1 - lr * group["weight_decay"])
        p.add_((x.T if tall else x).reshape(p.shape), alpha=-lr * (0.2 * max(g.shape) ** 0.5))

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        """Add the parameters that Adam steps, and their state, to lists, of which matrices are in none."""
        return False if AHEAD in group else bool(super()._init_group(group, *lists))  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Adam's own fills in what old versions of torch did not save, and looks for its counter at every parameter.
        torch.optim.Optimizer.__setstate__(self, state)


def muon(
    groups: ParameterGroups,
    *,
    lr: Rate = 1e-3,
    momentum: Momentum = 0.95,
    nesterov: Nesterov = True,
    weight_decay: Decay = 0.1,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
) -> torch.optim.Optimizer:
    """Orthogonal momentum for the matrices within the network, and AdamW for embeddings, heads and vectors.

    Kernels of convolutions are matrices [out, in * height * width]. Weight decay is decoupled.
    """
    decayed, undecayed = groups.param_groups(weight_decay=weight_decay)
    matrices = groups.hidden_matrices()
    own = set(map(id, matrices))
    others = [one for one in decayed["params"] if id(one) not in own]
    of_matrices = decayed | {"params": matrices, "momentum": momentum, AHEAD: float(nesterov)}
    parts = [of_matrices, decayed | {"params": others}, undecayed]
    return Muon(parts, lr=lr, betas=betas, eps=eps, decoupled_weight_decay=True)
