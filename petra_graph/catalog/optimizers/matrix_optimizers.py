"""Muon and SOAP: steps of their own for matrices, and AdamW's for all other parameters.

Muon makes the momentum of a matrix orthogonal:

    v <- m v + (1 - m) g
    u  = m v + (1 - m) g   with Nesterov momentum, v without
    w <- w (1 - lr wd) - lr s NS(u)

NS takes a matrix U S V' close to U V': it divides by the Frobenius norm and iterates x <- a x + (b X + c X^2) x with X = x x', which leaves
singular values near 1, between 0.7 and 1.2. s is 0.2 sqrt(max(rows, columns)), with which the step's elements are as large as those
of AdamW, whose learning rate it can then share; or the authors' own sqrt(max(1, rows / columns)).

Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; s of AdamW: Liu et al. 2025, arXiv:2502.16982; the bits of a step
are those of `torch.optim.Muon`, which torch has since 2.9, and which takes no kernels of convolutions.

SOAP is Adam in the eigenbases of a matrix's mean G G' and G' G:

    q = L' g R                              L, R the eigenbases of A and B, as they were last found
    m <- b1 m + (1 - b1) g                  v <- b2 v + (1 - b2) q^2
    w <- w (1 - lr wd) - lr L (L' m_hat R / (sqrt(v_hat) + eps)) R'
    A <- b2 A + (1 - b2) g g'               B <- b2 B + (1 - b2) g' g

After `precondition_frequency` steps each, the bases come nearer to those of A and B by an iteration of powers, L <- qr(A L), of columns in the order of their
eigenvalues. The basis of a side that is longer than `max_precond_dim` is the identity.

Sources: Vyas et al. 2024, arXiv:2409.11321, algorithm 3, and its code, nikhilvyas/SOAP; under delays it is the basis rotation of Jung et al. 2026,
arXiv:2602.03515. Its public code refreshes all stages alike, and so does this; it leaves embeddings and heads to AdamW, and SOAP does not.

Decision: Muon's matrices are those of its authors, weights and kernels within the network. Embeddings, tables of positions and whatever
a head has are AdamW's, as are biases and normalisations; a stem's weights, which map features, are matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from petra_graph.catalog.optimizers.torch_optimizers import (
    Adam,
    Betas,
    Decay,
    Eps,
    Momentum,
    Nesterov,
    Rate,
    expect_momentum,
)
from petra_graph.plugins import AtLeast, AtMost, ParameterGroups

MATRICES = "matrices"
"""The key of a group whose parameters are matrices."""
_A, _B, _C = 3.4445, -4.7750, 2.0315
_SMALLEST_NORM = 1e-7

# p parameter, m momentum, v momentum buffer, g gradient, in functions of a state as a matrix, wd weight decay


class MatrixOptimizer(Adam):
    """Adam, or with `decoupled_weight_decay` AdamW, of all groups but those of `MATRICES`, which step by `_step_matrix`.

    Kernels of convolutions are matrices of their first dimension and all others together: [out, in, ...] is [out, in * ...].
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        """Update every parameter that has a gradient, once."""
        for group in self.param_groups:
            for parameter in group["params"] if group.get(MATRICES) else ():
                if parameter.grad is not None:
                    self._step_matrix(parameter, parameter.grad, group)
        super().step()

    def _step_matrix(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        """Update a parameter of two dimensions or more by its gradient."""
        raise NotImplementedError

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        """Add the parameters that Adam steps, and their state, to lists, of which matrices are in none."""
        return False if group.get(MATRICES) else bool(super()._init_group(group, *lists))  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Adam's own fills in what old versions of torch did not save, and looks for its counter at every parameter.
        torch.optim.Optimizer.__setstate__(self, state)

    @classmethod
    def of(
        cls,
        groups: ParameterGroups,
        matrices: Sequence[nn.Parameter],
        *,
        lr: float,
        betas: Any,
        eps: float,
        weight_decay: float,
        **options: Any,
    ) -> MatrixOptimizer:
        """Make one of three groups: the matrices, which are decayed, with options of their own; the other decayed parameters; the undecayed."""
        decayed, undecayed = groups.param_groups(weight_decay=weight_decay)
        own = set(map(id, matrices))
        others = [one for one in decayed["params"] if id(one) not in own]
        three = [
            decayed | {"params": list(matrices), MATRICES: True} | options,
            decayed | {"params": others},
            undecayed,
        ]
        return cls(three, lr=lr, betas=tuple(betas), eps=eps, decoupled_weight_decay=True)


class Muon(MatrixOptimizer):
    """Muon of groups with `MATRICES`, which have "momentum", "ahead", "ns_steps" and "adjust_lr"; AdamW of the others.

    "ahead" is how many updates the momentum looks ahead, 1 with Nesterov momentum: u is m^ahead v + (1 - m^ahead) g. A correction of
    late gradients may look further ahead.
    """

    def _step_matrix(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        m, lr, wd = group["momentum"], group["lr"], group["weight_decay"]
        state, g = self.state[p], g.flatten(1)
        if not state:
            state["momentum_buffer"] = torch.zeros_like(g)
        v = state["momentum_buffer"].lerp_(g, 1 - m)
        share = m ** group["ahead"]
        step = orthogonal(v if share == 1 else g.lerp(v, share), group["ns_steps"])
        rows, columns = g.shape
        original = group["adjust_lr"] == "original"
        scale = max(1, rows / columns) ** 0.5 if original else 0.2 * max(rows, columns) ** 0.5
        p.mul_(1 - lr * wd)
        p.add_(step.reshape(p.shape), alpha=-lr * scale)


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
    own = {"momentum": momentum, "ahead": float(nesterov), "ns_steps": ns_steps, "adjust_lr": adjust_lr}
    matrices = groups.hidden_matrices()
    return Muon.of(groups, matrices, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **own)


# --- SOAP -------------------------------------------------------------------------------------------------------------


class Soap(MatrixOptimizer):
    """SOAP of groups with `MATRICES`, which have "precondition_frequency" and "max_precond_dim"; AdamW of the others.

    Decision: the first step, which the source leaves out, since bases of this gradient alone would rotate it, is Adam's first step. A
    step must move every parameter. As in the source, the means begin after it.

    Decision: bases are refreshed after steps 2, 2 + f, 2 + 2 f, ... (the source: f + 1, 2 f + 1, ...). The first are those of one gradient
    alone; and the memory of the second step, which plans count for all later ones too, is then the most that a step takes.
    """

    def _step_matrix(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state, lr, (beta1, beta2) = self.state[p], group["lr"], group["betas"]
        p.mul_(1 - lr * group["weight_decay"])
        matrix = g.flatten(1)
        # The gradient with each side as its rows.
        sides = (("left", matrix), ("right", matrix.T))
        if not state:
            p.sub_(g / (g.abs() + group["eps"]), alpha=lr)
            state |= {"step": 0, "exp_avg": torch.zeros_like(matrix), "exp_avg_sq": torch.zeros_like(matrix)}
            for side, rows in sides:
                if len(rows) <= group["max_precond_dim"]:
                    state[side] = (rows @ rows.T).mul_(1 - beta2)
                    # The loss tells what is wrong; eigh would blame the optimizer.
                    finite = state[side].nan_to_num(0.0, 0.0, 0.0)
                    # Contiguous, as a checkpoint restores it: the layout of a factor changes the bits of its products.
                    state[f"{side}_basis"] = torch.linalg.eigh(finite).eigenvectors.flip(1).contiguous()
            return
        state["step"] += 1
        mean, square, count = state["exp_avg"], state["exp_avg_sq"], state["step"]
        mean.lerp_(matrix, 1 - beta1)
        rotated = _rotated(state, matrix)
        square.mul_(beta2).addcmul_(rotated, rotated, value=1 - beta2)
        below = (square.sqrt() / (1 - beta2**count) ** 0.5).add_(group["eps"])
        for side, rows in sides:
            if side in state:
                state[side].lerp_(rows @ rows.T, 1 - beta2)
        step = _rotated(state, _rotated(state, mean).div_(below), back=True).div_(1 - beta1**count)
        p.sub_(step.reshape(p.shape), alpha=lr)
        if (count - 1) % group["precondition_frequency"] == 0:
            _refresh(state)


def _rotated(state: dict[str, Any], matrix: Tensor, *, back: bool = False) -> Tensor:
    """Return L' X R, or back again L X R', in memory of its own."""
    left, right = state.get("left_basis"), state.get("right_basis")
    if left is not None:
        matrix = (left if back else left.T) @ matrix
    return matrix if right is None else matrix @ (right.T if back else right)


def _refresh(state: dict[str, Any]) -> None:
    """Bring the bases nearer to the eigenbases, and the mean squares into their order."""
    for dim, side in enumerate(("left", "right")):
        if side not in state:
            continue
        basis = state[f"{side}_basis"]
        powered = state[side] @ basis
        order = (basis * powered).sum(0).argsort(descending=True, stable=True)
        basis.copy_(torch.linalg.qr(powered[:, order]).Q)
        state["exp_avg_sq"].copy_(state["exp_avg_sq"].index_select(dim, order))


def soap(
    groups: ParameterGroups,
    *,
    lr: Rate = 3e-3,
    betas: Betas = (0.95, 0.95),
    eps: Eps = 1e-8,
    weight_decay: Decay = 0.01,
    precondition_frequency: Annotated[int, "updates between two refreshes of the bases", AtLeast(1)] = 10,
    max_precond_dim: Annotated[
        int, "longest side of a matrix that has a basis; longer ones have the identity", AtLeast(1)
    ] = 10_000,
) -> torch.optim.Optimizer:
    """Adam in the eigenbases of the mean G G' and G' G of matrices and kernels, and AdamW for vectors.

    Kernels of convolutions are matrices [out, in * height * width]. A matrix whose sides are both too long for a basis is AdamW's. Weight
    decay is decoupled.
    """
    shortest = {id(one): min(one.flatten(1).shape) for one in groups.decayed if one.dim() > 1}
    matrices = [one for one in groups.decayed if shortest.get(id(one), inf) <= max_precond_dim]
    own = {"precondition_frequency": precondition_frequency, "max_precond_dim": max_precond_dim}
    return Soap.of(groups, matrices, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **own)
