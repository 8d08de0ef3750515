"""SOAP: Adam in the eigenbases of a matrix's mean G G' and G' G; AdamW for vectors.

    q = L' g R                              L, R the eigenbases of A and B, as they were last found
    m <- b1 m + (1 - b1) g                  v <- b2 v + (1 - b2) q^2
    w <- w (1 - lr wd) - lr L (L' m_hat R / (sqrt(v_hat) + eps)) R'
    A <- b2 A + (1 - b2) g g'               B <- b2 B + (1 - b2) g' g

After `precondition_frequency` steps each, the bases come nearer to those of A and B by an iteration of powers, L <- qr(A L), of columns in the order of their
eigenvalues. The basis of a side that is longer than `max_precond_dim` is the identity.

Sources: Vyas et al. 2024, arXiv:2409.11321, algorithm 3, and its code, nikhilvyas/SOAP; under delays it is the basis rotation of Jung et al. 2026,
arXiv:2602.03515. Its public code refreshes all stages alike, and so does this; it leaves embeddings and heads to AdamW, and SOAP does not.

Decision: the first step, which the source leaves out, since bases of this gradient alone would rotate it, is Adam's first step. A step
must move every parameter. As in the source, the means begin after it.

Decision: bases are refreshed after steps 2, 2 + f, 2 + 2 f, ... (the source: f + 1, 2 f + 1, ...). The first are those of one gradient alone;
and the memory of the second step, which plans count for all later ones too, is then the most that a step takes.
"""

from __future__ import annotations

from math import inf
from typing import Annotated, Any

import torch
from torch import Tensor

from petra_graph.catalog.optimizers.torch_optimizers import (
    Betas,
    Decay,
    Eps,
    MatrixOptimizer,
    Rate,
    groups_with_matrices,
)
from petra_graph.plugins import AtLeast, ParameterGroups

# p parameter, g gradient, in functions of a state as a matrix, wd weight decay


class Soap(MatrixOptimizer):
    """SOAP of groups with `MATRICES`, which have "precondition_frequency" and "max_precond_dim"; AdamW of the others."""

    def _step_matrix(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        p.mul_(1 - group["lr"] * group["weight_decay"])
        if not state:
            p.sub_(g / (g.abs() + group["eps"]), alpha=group["lr"])
            self._begin(state, g.flatten(1), group)
            return
        state["step"] += 1
        p.sub_(self._followed(state, g.flatten(1), group).reshape(p.shape), alpha=group["lr"])
        if (state["step"] - 1) % group["precondition_frequency"] == 0:
            _refresh(state)

    def _begin(self, state: dict[str, Any], g: Tensor, group: dict[str, Any]) -> None:
        """Make the state of a parameter, with the eigenbases of its first gradient."""
        state |= {"step": 0, "exp_avg": torch.zeros_like(g), "exp_avg_sq": torch.zeros_like(g)}
        for side, own in _sides(g):
            if len(own) <= group["max_precond_dim"]:
                state[side] = (own @ own.T).mul_(1 - group["betas"][1])
                # The loss tells what is wrong; eigh would blame the optimizer.
                finite = state[side].nan_to_num(0.0, 0.0, 0.0)
                # Contiguous, as a checkpoint restores it: the layout of a factor changes the bits of its products.
                state[f"{side}_basis"] = torch.linalg.eigh(finite).eigenvectors.flip(1).contiguous()

    def _followed(self, state: dict[str, Any], g: Tensor, group: dict[str, Any]) -> Tensor:
        """Advance all means, and return the step over the learning rate."""
        (beta1, beta2), count = group["betas"], state["step"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(g, 1 - beta1)
        rotated = _rotated(state, g)
        square.mul_(beta2).addcmul_(rotated, rotated, value=1 - beta2)
        below = (square.sqrt() / (1 - beta2**count) ** 0.5).add_(group["eps"])
        for side, own in _sides(g):
            if side in state:
                state[side].lerp_(own @ own.T, 1 - beta2)
        return _rotated(state, _rotated(state, mean).div_(below), back=True).div_(1 - beta1**count)


def _sides(g: Tensor) -> tuple[tuple[str, Tensor], tuple[str, Tensor]]:
    """Return the gradient with each side as its rows."""
    return ("left", g), ("right", g.T)


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
    parameters = groups_with_matrices(
        groups,
        [one for one in groups.decayed if shortest.get(id(one), inf) <= max_precond_dim],
        weight_decay=weight_decay,
        precondition_frequency=precondition_frequency,
        max_precond_dim=max_precond_dim,
    )
    return Soap(parameters, lr=lr, betas=(betas[0], betas[1]), eps=eps, decoupled_weight_decay=True)
