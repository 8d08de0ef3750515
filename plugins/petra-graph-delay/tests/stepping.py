"""Optimizers of torch with corrections around them, and steps of several parameters by gradients that are drawn."""

from __future__ import annotations

import torch
from petra_graph_delay.discrepancy_correction import EarlierWeights
from petra_graph_delay.error_feedback import ErrorFeedback
from petra_graph_delay.spike_compensation import Spike
from petra_graph_delay.weight_prediction import Predicted
from torch import nn

SHAPES = [(), (5,), (4, 3), (2, 3, 3, 3), (40, 50)]
SGD = [
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.0},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0},
    {"momentum": 0.9, "nesterov": False, "weight_decay": 0.1},
    {"momentum": 0.0, "nesterov": False, "weight_decay": 0.1},
]
ADAM = [
    {"decoupled_weight_decay": decoupled, "weight_decay": weight_decay, "betas": betas}
    for decoupled in (False, True)
    for weight_decay in (0.0, 0.1)
    for betas in ((0.9, 0.999), (0.0, 0.5))
]


def around(base, *wrappers):
    """Return what builds an optimizer with wrappers around it, the innermost first."""

    def build(parameters, **options):
        optimizer = base(parameters, **options)
        for wrapper in wrappers:
            optimizer = wrapper(optimizer)
        return optimizer

    return build


Sgd, Adam, Nadam = torch.optim.SGD, torch.optim.Adam, torch.optim.NAdam
SpikeSgd, SpikeAdam = (around(base, Spike) for base in (Sgd, Adam))
FeedbackSgd, FeedbackAdam, FeedbackNadam = (around(base, ErrorFeedback) for base in (Sgd, Adam, Nadam))
EarlierSgd, EarlierAdam = (around(base, EarlierWeights) for base in (Sgd, Adam))
EarlierSpikeSgd, EarlierSpikeAdam = (around(base, Spike, EarlierWeights) for base in (Sgd, Adam))
EarlierFeedbackSgd, EarlierFeedbackAdam = (around(base, ErrorFeedback, EarlierWeights) for base in (Sgd, Adam))
PredictedSgd, PredictedAdam = (around(base, Predicted) for base in (Sgd, Adam))
PredictedSpikeSgd, PredictedSpikeAdam = (around(base, Spike, Predicted) for base in (Sgd, Adam))


def made(build, delay=None, dtype=torch.float32, **options):
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES]
    optimizer = build(parameters, lr=0.01, **options)
    if delay is not None:
        set_delay(optimizer, delay)
    return parameters, optimizer


def set_delay(optimizer, delay):
    for group in optimizer.param_groups:
        group["staleness"] = delay


def step(parameters, optimizer, number, without=()):
    generator = torch.Generator().manual_seed(1 + number)
    for index, parameter in enumerate(parameters):
        drawn = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.grad = None if index in without else drawn
    optimizer.step()


def expect_same(one, other):
    (parameters, optimizer), (others, their) = one, other
    for a, b in zip(parameters, others, strict=True):
        assert torch.equal(a, b)
        assert optimizer.state[a].keys() == their.state[b].keys()
        pairs = ((optimizer.state[a][key], their.state[b][key]) for key in optimizer.state[a])
        assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in pairs)
