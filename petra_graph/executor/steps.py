"""The steps of torch's SGD, Adam and AdamW on a processor, in a few calls for all parameters of a group: torch's arithmetic, state and bits.

Around its arithmetic torch's `step` looks at devices, types and hooks, parameter by parameter, which takes an eighth of a small
micro-batch. The state stays where torch has it, so checkpoints are the same, and a step of torch's own can follow at any time.

    SGD      d = g + decay p;  b = momentum b + (1 - dampening) d;  p -= lr (d + momentum b), or lr b without Nesterov
    Adam     g = g + decay p;  m = lerp(m, g, 1 - beta1);  v = beta2 v + (1 - beta2) g^2
             p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
    AdamW    p = (1 - lr decay) p instead of g + decay p

Gradients are changed in place: a step is the last that needs them.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam
from torch.optim import optimizer as torch_hooks

Group = dict[str, Any]
State = MutableMapping[Tensor, dict[str, Any]]
_UNUSUAL = ("fused", "maximize", "amsgrad", "capturable", "differentiable")


def step_of(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Return what steps an optimizer: a few calls for torch's SGD, Adam and AdamW, else its own `step`."""
    kind = next((kind for kind in _STEPS if isinstance(optimizer, kind)), None)
    if kind is None or unwrap(type(optimizer).step) is not unwrap(kind.step):
        return optimizer.step
    stepped, state = _STEPS[kind], optimizer.state

    def step() -> None:
        groups = optimizer.param_groups
        if "step" in vars(optimizer) or _is_hooked(optimizer) or any(map(_is_unusual, groups)):
            optimizer.step()
            return
        with torch.no_grad():
            for group in groups:
                if pairs := [(one, one.grad) for one in group["params"] if one.grad is not None]:
                    stepped(group, state, *map(list, zip(*pairs, strict=True)))

    return step


def _is_hooked(optimizer: torch.optim.Optimizer) -> bool:
    return bool(
        optimizer._optimizer_step_pre_hooks  # noqa: SLF001  nothing public says it
        or optimizer._optimizer_step_post_hooks  # noqa: SLF001
        or torch_hooks._global_optimizer_pre_hooks  # noqa: SLF001
        or torch_hooks._global_optimizer_post_hooks  # noqa: SLF001
    )


def _is_unusual(group: Group) -> bool:
    """Whether a group asks for more than the arithmetic above. On the meta device, where steps are measured, torch's own is."""
    first = next(iter(group["params"]), None)
    elsewhere = first is not None and first.device.type != "cpu"
    return elsewhere or isinstance(group["lr"], Tensor) or any(map(group.get, _UNUSUAL))


def _sgd(group: Group, state: State, parameters: list[Tensor], gradients: list[Tensor]) -> None:
    if decay := group["weight_decay"]:
        torch._foreach_add_(gradients, parameters, alpha=decay)
    if momentum := group["momentum"]:
        begun = [(state[one]["momentum_buffer"], d) for one, d in zip(parameters, gradients, strict=True) if state[one]]
        if begun:
            moving, added = map(list, zip(*begun, strict=True))
            torch._foreach_mul_(moving, momentum)
            torch._foreach_add_(moving, added, alpha=1 - group["dampening"])
        if len(begun) < len(parameters):
            for one, d in zip(parameters, gradients, strict=True):
                if not state[one]:
                    state[one]["momentum_buffer"] = d.clone()
        buffers = [state[one]["momentum_buffer"] for one in parameters]
        if group["nesterov"]:
            torch._foreach_add_(gradients, buffers, alpha=momentum)
        else:
            gradients = buffers
    torch._foreach_add_(parameters, gradients, alpha=-group["lr"])


def _adam(group: Group, state: State, parameters: list[Tensor], gradients: list[Tensor]) -> None:
    lr, (beta1, beta2), eps, decay = group["lr"], group["betas"], group["eps"], group["weight_decay"]
    for one in parameters:
        if not state[one]:
            step = torch.tensor(
                0.0, dtype=torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
            )
            state[one] |= {"step": step, "exp_avg": torch.zeros_like(one), "exp_avg_sq": torch.zeros_like(one)}
    own = [state[one] for one in parameters]
    counts, means, squares = ([one[name] for one in own] for name in ("step", "exp_avg", "exp_avg_sq"))
    torch._foreach_add_(counts, 1.0)
    if decay and group["decoupled_weight_decay"]:
        torch._foreach_mul_(parameters, 1 - lr * decay)
    elif decay:
        torch._foreach_add_(gradients, parameters, alpha=decay)
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
    # One by one, so that a step needs the memory of the largest parameter and not of all.
    for parameter, count, mean, square in zip(parameters, counts, means, squares, strict=True):
        t = count.item()
        denominator = (square.sqrt() / (1 - beta2**t) ** 0.5).add_(eps)
        parameter.addcdiv_(mean, denominator, value=-(lr / (1 - beta1**t)))


_STEPS: dict[type[torch.optim.Optimizer], Callable[[Group, State, list[Tensor], list[Tensor]], None]] = {
    SGD: _sgd,
    Adam: _adam,
}
