"""Muon: the momentum of each hidden matrix, made orthogonal; AdamW for all other parameters.

    v <- m v + (1 - m) g
    u  = m v + (1 - m) g   with Nesterov momentum, v without
    w <- w (1 - lr wd) - lr s NS(u)

NS takes a matrix U S V' close to U V': it divides by the Frobenius norm and iterates x <- a x + (b X + c X^2) x with X = x x', which leaves
singular values near 1, between 0.7 and 1.2. s is 0.2 sqrt(max(rows, columns)), with which the step's elements are as large as those
of AdamW, whose learning rate it can then share; or the authors' own sqrt(max(1, rows / columns)).

Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; s of AdamW: Liu et al. 2025, arXiv:2502.16982; the bits of a step
are those of `torch.optim.Muon`, which torch has since 2.9, and which takes no kernels of convolutions.

Decision: the matrices are those of the authors, weights and kernels within the network. Embeddings, tables of positions and whatever
a head has are AdamW's, as are biases and normalisations; a stem's weights, which map features, are matrices.

The key "ahead" of a group is how many updates its momentum looks ahead, 1 with Nesterov momentum: u is m^ahead v + (1 - m^ahead) g. A
correction of late gradients may look further ahead.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from petra_graph.catalog.optimizers.torch_optimizers import (
    Betas,
    Decay,
    Eps,
    MatrixOptimizer,
    Momentum,
    Nesterov,
    Rate,
    expect_momentum,
    groups_with_matrices,
)
from petra_graph.plugins import AtLeast, AtMost, ParameterGroups

_A, _B, _C = 3.4445, -4.7750, 2.0315
_SMALLEST_NORM = 1e-7

# p parameter, m momentum, v momentum buffer, g gradient, wd weight decay


class Muon(MatrixOptimizer):
    """Muon of groups with `MATRICES`, which have "momentum", "ahead", "ns_steps" and "adjust_lr"; AdamW of the others."""

    def _step_matrix(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        m, lr, wd = group["momentum"], group["lr"], group["weight_decay"]
        state, g = self.state[p], g.flatten(1)
        if not state:
            state["momentum_buffer"] = torch.zeros_like(g)
        v = state["momentum_buffer"].lerp_(g, 1 - m)
        share = m ** group["ahead"]
        step = orthogonal(v if share == 1 else g.lerp(v, share), group["ns_steps"])
        p.mul_(1 - lr * wd)
        p.add_(step.reshape(p.shape), alpha=-lr * adjusted(group["adjust_lr"], *g.shape))


def orthogonal(matrix: Tensor, steps: int) -> Tensor:
    """Return a matrix in bfloat16 of about the same singular vectors, with singular values near 1; zeros remain zeros."""
    x = matrix.to(torch.bfloat16, copy=True)
    tall = len(x) > x.shape[1]
    if tall:
        x = x.T
    x.div_(x.norm().clamp(min=_SMALLEST_NORM))
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x.T if tall else x


def adjusted(how: str, rows: int, columns: int) -> float:
    """Return s, the factor of the learning rate for a matrix."""
    if how == "original":
        return float(max(1, rows / columns) ** 0.5)
    return float(0.2 * max(rows, columns) ** 0.5)


def muon(
    groups: ParameterGroups,
    *,
    lr: Rate = 1e-3,
    momentum: Momentum = 0.95,
    nesterov: Nesterov = True,
    weight_decay: Decay = 0.1,
    adjust_lr: Annotated[
        Literal["match_rms_adamw", "original"],
        "how lr becomes a matrix's rate: for steps as large as AdamW's, or as the authors have it, whose lr is about 0.02",
    ] = "match_rms_adamw",
    ns_steps: Annotated[int, "Newton-Schulz iterations that make a step orthogonal", AtLeast(1), AtMost(99)] = 5,
    betas: Betas = (0.9, 0.999),
    eps: Eps = 1e-8,
) -> torch.optim.Optimizer:
    """Orthogonal momentum for the matrices within the network, and AdamW for embeddings, heads and vectors.

    Kernels of convolutions are matrices [out, in * height * width]. Weight decay is decoupled.
    """
    expect_momentum(momentum, nesterov=nesterov)
    parameters = groups_with_matrices(
        groups,
        groups.hidden_matrices(),
        weight_decay=weight_decay,
        momentum=momentum,
        ahead=float(nesterov),
        ns_steps=ns_steps,
        adjust_lr=adjust_lr,
    )
    return Muon(parameters, lr=lr, betas=(betas[0], betas[1]), eps=eps, decoupled_weight_decay=True)
