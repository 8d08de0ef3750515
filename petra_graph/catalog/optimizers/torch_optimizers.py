"""torch's own optimizers, without its marks for `torch.compile`: the same steps and state.

Functions that a compiler must skip import `torch._dynamo` when they are first called, which takes more than half as long as the
import of torch. A run that compiles nothing needs none of it, and optimizers are never compiled here. `inspect.unwrap` returns the functions as torch's
authors wrote them.
"""

from __future__ import annotations

from inspect import unwrap

import torch


class Unmarked(torch.optim.Optimizer):
    """Methods of all optimizers."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class SGD(Unmarked, torch.optim.SGD):
    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class Adam(Unmarked, torch.optim.Adam):
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(Adam, torch.optim.AdamW):
    pass


class NAdam(Unmarked, torch.optim.NAdam):
    step = torch.no_grad()(unwrap(torch.optim.NAdam.step))
