"""Steps in a few calls have the bits and the state of torch's own, whatever is frozen, unused or stepped for the first time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from petra_graph.executor.update import step_of

SETTINGS = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}),
    (torch.optim.SGD, {"momentum": 0.8, "dampening": 0.3}),
    (torch.optim.Adam, {"weight_decay": 1e-2}),
    (torch.optim.AdamW, {"betas": (0.8, 0.99), "eps": 1e-6}),
]


def trained(kind, options, own: bool, steps: int = 6):
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in ((3, 5), (7,), (4, 3, 3, 3))]
    parameters[2].data = parameters[2].data.contiguous(memory_format=torch.channels_last)
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "weight_decay": 0.0}]
    optimizer = kind(groups, lr=0.1, **options)
    step = step_of(optimizer) if own else optimizer.step
    assert own == (step != optimizer.step)
    for at in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + at)
        for index, one in enumerate(parameters):
            one.grad = torch.randn_like(one) if at or index else None  # the first one's first step comes later
        step()
    return parameters, optimizer


@pytest.mark.parametrize(("kind", "options"), SETTINGS)
def test_bits_and_state_are_those_of_torch(kind, options):
    parameters, optimizer = trained(kind, options, own=True)
    expected, of_torch = trained(kind, options, own=False)
    for one, other in zip(parameters, expected, strict=True):
        assert torch.equal(one, other)
        state, known = optimizer.state.get(one, {}), of_torch.state.get(other, {})
        assert state.keys() == known.keys()
        for key, value in known.items():
            assert torch.equal(state[key], value)
            assert (state[key].dtype, state[key].stride()) == (value.dtype, value.stride())


def test_what_is_not_torchs_arithmetic_keeps_its_own_step():
    class Doubled(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    parameter = [nn.Parameter(torch.ones(2))]
    for optimizer in (Doubled(parameter, lr=0.1), torch.optim.NAdam(parameter)):
        assert step_of(optimizer) == optimizer.step


def test_a_hook_of_the_step_is_called():
    parameter, called = nn.Parameter(torch.ones(2)), []
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    step = step_of(optimizer)
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    parameter.grad = torch.ones(2)
    step()
    assert called == [1]
    assert torch.equal(parameter.detach(), torch.full((2,), 0.9))
