"""Muon: torch's own steps of matrices, and AdamW's of the others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from petra_graph.catalog.optimizers.matrix_optimizers import muon
from petra_graph.catalog.optimizers.torch_optimizers import adamw
from petra_graph.plugins import ParameterGroups

MATRIX_SHAPES = [(6, 4), (3, 8), (5, 5), (1, 7), (7, 1), (4, 2, 3, 3), (6, 5, 1)]
OTHER_SHAPES = [(5,), (), (9, 4)]
"""The last is a table."""
HOW = [
    {"nesterov": nesterov, "adjust_lr": adjust_lr, "weight_decay": weight_decay}
    for nesterov in (True, False)
    for adjust_lr in ("match_rms_adamw", "original")
    for weight_decay in (0.0, 0.1)
]


class Run:
    """Parameters of each kind with an optimizer of them."""

    def __init__(self, dtype=torch.float32, **options):
        generator = torch.Generator().manual_seed(0)
        shapes = [*MATRIX_SHAPES, *OTHER_SHAPES]
        made = [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]
        self.matrices, self.others = made[: len(MATRIX_SHAPES)], made[len(MATRIX_SHAPES) :]
        decayed = [*self.others[1:], *self.matrices]
        groups = ParameterGroups(decayed=decayed, undecayed=[self.others[0]], tables=[self.others[2]])
        self.optimizer = muon(groups, lr=0.01, **options)

    def step(self, number):
        generator = torch.Generator().manual_seed(1 + number)
        for one in (*self.matrices, *self.others):
            one.grad = torch.randn(one.shape, generator=generator, dtype=one.dtype)
        self.optimizer.step()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has it since 2.9")
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ns_steps", [1, 5])
def test_matrices_are_torchs_to_the_bit(how, dtype, ns_steps):
    run = Run(dtype=dtype, ns_steps=ns_steps, **how)
    flat = [nn.Parameter(one.detach().flatten(1).clone()) for one in run.matrices]
    of_torch = {**how, "adjust_lr_fn": how["adjust_lr"]}
    del of_torch["adjust_lr"]
    theirs = torch.optim.Muon(flat, lr=0.01, momentum=0.95, ns_steps=ns_steps, **of_torch)
    for number in range(10):
        run.step(number)
        for own, parameter in zip(flat, run.matrices, strict=True):
            own.grad = parameter.grad.flatten(1).clone()
        theirs.step()
        for own, parameter in zip(flat, run.matrices, strict=True):
            assert torch.equal(own, parameter.flatten(1))
            assert torch.equal(theirs.state[own]["momentum_buffer"], run.optimizer.state[parameter]["momentum_buffer"])


def test_the_others_are_adamws_to_the_bit():
    run = Run(weight_decay=0.1, betas=(0.8, 0.99))
    copies = [nn.Parameter(one.detach().clone()) for one in run.others]
    groups = ParameterGroups(decayed=copies[1:], undecayed=copies[:1])
    options = {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.99)}
    plain = adamw(groups, **options)
    for number in range(10):
        run.step(number)
        for own, parameter in zip(copies, run.others, strict=True):
            own.grad = parameter.grad.clone()
        plain.step()
        assert all(map(torch.equal, copies, run.others))
