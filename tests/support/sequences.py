"""Small reversible sequences, and their comparison with plain autograd."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from petra_graph.autograd import ReversibleSequence, reversible
from petra_graph.autograd.reversible_sequence import CouplingName

FEATURES = 6


def branch(outputs: int = FEATURES, dropout: float = 0.3) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, outputs)
    )


def sequence(
    coupling: CouplingName = "additive", depth: int = 4, dropout: float = 0.3, *, pairs: bool = False, **settings: Any
) -> ReversibleSequence:
    outputs = 2 * FEATURES if coupling == "affine" else FEATURES
    made = [
        (branch(outputs, dropout), branch(outputs, dropout)) if pairs else branch(outputs, dropout)
        for _ in range(depth)
    ]
    return reversible(made, coupling=coupling, **settings).double()


def inputs(batch: int = 4, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, FEATURES, generator=generator, dtype=torch.float64).requires_grad_()


def gradients(
    made: ReversibleSequence, *arguments: Any, keep_graphs: int = 0, **named: Any
) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """Run forward and backward; return the output, all gradients, and torch's generator afterwards."""
    made.keep_graphs = keep_graphs
    torch.manual_seed(7)
    output = made(*arguments, **named)
    wanted = [one for one in (*arguments, *made.parameters()) if isinstance(one, torch.Tensor) and one.requires_grad]
    found = torch.autograd.grad(output.double().square().sum(), wanted, allow_unused=True)
    return output.detach(), found, torch.get_rng_state()


def expect_plain(made: ReversibleSequence, *arguments: Any, **named: Any) -> None:
    """Compare with a copy of the sequence that runs under plain autograd, statistics included."""
    plain = copy.deepcopy(made)
    output, found, generator = gradients(made, *arguments, **named)
    of_plain, expected, generator_of_plain = gradients(plain, *arguments, keep_graphs=len(plain), **named)
    assert torch.equal(output, of_plain)
    assert torch.equal(generator, generator_of_plain)
    size = max(float(one.abs().max()) for one in expected if one is not None)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11 * size)
    for (name, one), other in zip(made.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(one, other), name
