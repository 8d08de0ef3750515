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

With spike compensation (`spike_compensation`, D the delay in updates), the step of a late gradient is that of v' = v / (1 - m):

    a v' + b g,    a = m^D, b = (1 - m^D) / (1 - m);    times (1 - m), which NS does not see:    a v + (1 - a) g

Nesterov momentum under a delay of D is the spike of D + 1. AdamW has the spike of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from petra_graph.catalog.optimizers.matrix_optimizer import MatrixOptimizer
from petra_graph.catalog.optimizers.spike_compensation import CompensatedAdam, delay_of, spike_shares

_A, _B, _C = 3.4445, -4.7750, 2.0315
_SMALLEST_NORM = 1e-7

# p parameter, m momentum, v momentum buffer, g gradient, D delay in updates, wd weight decay


class Muon(MatrixOptimizer):
    """Muon of groups with `MATRICES`, which have "momentum", "nesterov", "ns_steps" and "adjust_lr"; AdamW of the others."""

    def _step_matrix(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        m, lr, wd = group["momentum"], group["lr"], group["weight_decay"]
        state, g = self.state[p], g.flatten(1)
        if not state:
            state["momentum_buffer"] = torch.zeros_like(g)
        v = state["momentum_buffer"].lerp_(g, 1 - m)
        share, _ = spike_shares(m, self._compensated(group) + (1 if group["nesterov"] else 0))
        step = orthogonal(v if share == 1 else g.lerp(v, share), group["ns_steps"])
        p.mul_(1 - lr * wd)
        p.add_(step.reshape(p.shape), alpha=-lr * adjusted(group["adjust_lr"], *g.shape))

    def _compensated(self, group: dict[str, Any]) -> float:
        """The delay that the steps of a group compensate."""
        return 0.0


class CompensatedMuon(Muon, CompensatedAdam):
    """Muon with spike compensation."""

    def _compensated(self, group: dict[str, Any]) -> float:
        return delay_of(group)


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
