"""Corrections of late gradients, each an optimizer around another one, with its groups and its state.

A gradient that comes D updates late is one of old parameters, and acts late. D is the mean delay of a window in updates, which the
executor sets in group["staleness"]; it need not be whole. Without delay, each step is the optimizer's own, to the bit.

**Spike**: a late gradient moves the parameters at once by what it would have moved them by now. With momentum m, one that is D late has
missed the first D of its shares 1, m, m^2, ... (Kosson et al. 2020, arXiv:2003.11666):

    v <- m v + g                        a = m^D
    w <- w - lr (a v + b g)             b = 1 + m + ... + m^(D-1) = (1 - m^D) / (1 - m)

At D = 1 it is Nesterov momentum, and under Nesterov momentum the spike of D + 1. Adam's mean is treated likewise, where b becomes 1 - beta1^D (the
paper has no such formula). Muon looks ahead along its momentum, by D further.

**Prediction**: the forward uses the parameters that its backward is expected to find, D updates later. The gradients in between are expected to
be zero in the mean, so that the momentum alone moves the parameters (SpecTrain, Chen et al. 2018, arXiv:1809.02839; XPipe, Guan et al. 2019,
arXiv:1911.04610; FTPipe, Eliad et al. 2021):

    SGD with momentum     w - lr (m + m^2 + ... + m^D) v;   with Nesterov m times that
    Adam                  p - sum over i = 1..D of lr m_hat_i / (sqrt(v_hat) + eps),    m_hat_i = beta1^i m / (1 - beta1^(t+i))
    AdamW                 the same, and before each of the D moves p shrinks by lr wd, as in a step

Weight decay that is part of the gradient is not zero in the mean: SGD's is that of D such steps exactly, Adam's that of the parameters of now.
With the spike, the steps in between are compensated ones. v_hat stays as it is: gradients to come are of the size of those before.

**Error feedback**: with the optimizer's own step u_t (arXiv:2606.30634, for D = 1; further back, a difference of two steps says nothing)

    p <- p + u_t + D (u_t - u_(t-1))        u_(-1) = u_0

**Discrepancy correction**: the backward uses an estimate of the weights that its forward had, d updates before (PipeMare's T2, Yang et al. 2021,
arXiv:1910.05124). The mean of the optimizer's steps of late, delta, says how far the weights have moved since:

    delta <- g delta + (1 - g) (w_new - w_old)      g = exp(-2 / D)         backward at w - d delta

The state holds delta as -S M: S <- g S + (1 - g) s the mean of the steps' scales, M <- M + (1 - g) s / S (u - M) that of their directions, so that
the rate may change. At D = 0, g is its limit, 0, and delta the last step.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from math import exp
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn

from petra_graph.catalog.optimizers import AHEAD, adam, adamw, muon, sgd
from petra_graph.plugins import AtLeast, GreaterThan, Length, LessThan, ParameterGroups
from petra_graph_studies.known_steps import (
    adam_moments,
    adam_parameters,
    add_scaled,
    added,
    chunked,
    late_steps,
    scale_of,
    sgd_moments,
    undelayed,
    with_gradients,
)

# m momentum or beta1, D delay in updates, g gradient, v momentum buffer, w and p parameters, u step, wd weight decay, t steps so far

WeightsOfDelay = list[tuple[nn.Parameter, Tensor]]
"""Parameters, each with a tensor like it that shares no memory with it."""
_BUILD: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": sgd, "adam": adam, "adamw": adamw, "muon": muon}


def corrected(
    groups: ParameterGroups,
    *,
    optimizer: Annotated[Literal["sgd", "adam", "adamw", "muon"], "the optimizer that is corrected"] = "sgd",
    lr: Annotated[float, "base learning rate; schedule and scaling multiply it", AtLeast(0)] = 0.1,
    correction: Annotated[
        Literal["none", "spike", "error-feedback"],
        'what makes up for the delay of gradients: "spike" makes the steps that a late gradient has missed, at once; "error-feedback" adds '
        "the difference from the step before, for a delay of at most 1 update",
    ] = "none",
    predict: Annotated[bool, "compute forwards at the weights that momentum predicts for their backwards"] = False,
    correct_discrepancy: Annotated[
        bool, "compute backwards at an estimate of the weights that their forwards had"
    ] = False,
    momentum: Annotated[float | None, "of sgd and muon", AtLeast(0), LessThan(1)] = None,
    nesterov: Annotated[bool | None, "of sgd and muon"] = None,
    betas: Annotated[
        tuple[Annotated[float, AtLeast(0), LessThan(1)], ...] | None, "of adam, adamw and muon", Length(2)
    ] = None,
    eps: Annotated[float | None, "of adam, adamw and muon", GreaterThan(0)] = None,
    weight_decay: Annotated[float | None, "none on normalisation and biases", AtLeast(0)] = None,
) -> torch.optim.Optimizer:
    """Another optimizer with corrections of late gradients; without delay, each step is that one's own, to the bit.

    The options that only some optimizers have are those of the one that `optimizer` names, with its defaults.
    """
    named = {"momentum": momentum, "nesterov": nesterov, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    build, given = _BUILD[optimizer], {"lr": lr} | {name: one for name, one in named.items() if one is not None}
    own = {one.name: one.default for one in signature(build).parameters.values() if one.kind is one.KEYWORD_ONLY}
    if unknown := [name for name in given if name not in own]:
        raise ValueError(f"{optimizer} has no option {unknown[0]!r}; it has {', '.join(own)}")
    if predict and correction == "error-feedback":
        raise ValueError(
            'predict = true expects steps without correction = "error-feedback"; set predict = false, or correction = "spike"'
        )
    if predict and correct_discrepancy:
        raise ValueError(
            "predict = true computes forwards at the weights of their backwards, and correct_discrepancy = true backwards at the "
            "weights of their forwards; set one of them to false"
        )
    if predict and optimizer == "muon":
        raise ValueError("predict = true is for sgd, adam and adamw (got optimizer = 'muon'); leave it out")
    chosen = own | given
    first = chosen["betas"][0] if optimizer.startswith("adam") else chosen["momentum"]
    if (predict or correction == "spike") and not first:
        raise ValueError('predict = true and correction = "spike" need a momentum, or a first beta, above 0 (got 0)')
    made = build(groups, **given)
    if correction != "none":
        made = Spike(made) if correction == "spike" else ErrorFeedback(made)
    if predict:
        return Predicted(made)
    return EarlierWeights(made) if correct_discrepancy else made


class Around(torch.optim.Optimizer):
    """Steps as the optimizer inside it. Every group has a "staleness", which the executor sets before each step."""

    inner: torch.optim.Optimizer

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        # Optimizer.__init__ would make groups of its own; this is how torch makes an optimizer from a pickled one.
        self.__setstate__({"inner": inner, "defaults": inner.defaults})
        for group in inner.param_groups:
            group.setdefault("staleness", 0.0)
            if group.get("fused"):  # Late steps are not fused, and the state of fused ones is on the GPU.
                group["fused"] = None

    @property
    def wrapped(self) -> torch.optim.Optimizer:
        """The innermost optimizer."""
        return self.inner.wrapped if isinstance(self.inner, Around) else self.inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.inner.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        if any(group["staleness"] for group in self.param_groups):
            self.step_late()
        else:
            self.step_in_time()

    def step_in_time(self) -> None:
        self.inner.step()

    step_late = step_in_time

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)


def sgd_shares(group: dict[str, Any], delay: float) -> tuple[float, float]:
    """Return a and b, the shares of momentum buffer and gradient in a step of SGD: of plain or Nesterov momentum, where the delay is 0."""
    momentum, delay = group["momentum"], delay + (1 if group["nesterov"] else 0)
    return momentum**delay, (1 - momentum**delay) / (1 - momentum)


class Spike(Around):
    """Spike compensation; a step has as many passes over the parameters as torch's."""

    def step_late(self) -> None:
        for group in self.param_groups:
            if AHEAD in group:
                self._step_ahead(group)
            elif isinstance(self.inner, torch.optim.SGD):
                parameters = with_gradients(group)
                for part in chunked(group, parameters):
                    self._update_sgd(parameters[part], group)
            else:
                parameters = adam_parameters(cast("torch.optim.Adam", self.inner), group)
                for part in chunked(group, parameters):
                    self._update_adam(parameters[part], group)

    def _step_ahead(self, group: dict[str, Any]) -> None:
        """Let the optimizer step a group that looks further ahead by the delay."""
        groups, ahead = self.param_groups, group[AHEAD]
        self.param_groups, group[AHEAD] = [group], ahead + group["staleness"]
        try:
            self.inner.step()
        finally:
            self.param_groups, group[AHEAD] = groups, ahead

    def _update_sgd(self, w: list[Tensor], group: dict[str, Any]) -> None:
        lr = group["lr"]
        a, b = sgd_shares(group, group["staleness"])
        g, v = sgd_moments(self, w, group)
        torch._foreach_add_(w, v, alpha=-lr * a)
        torch._foreach_add_(w, g, alpha=-lr * b)

    def _update_adam(self, p: list[Tensor], group: dict[str, Any]) -> None:
        if group["weight_decay"] and group["decoupled_weight_decay"]:
            torch._foreach_mul_(p, 1 - group["lr"] * group["weight_decay"])
        now = adam_moments(self, p, group)
        kept = group["betas"][0] ** group["staleness"]
        of_mean = [-group["lr"] * kept * factor for factor in now.factors]
        of_gradient = [-group["lr"] * (1 - kept) * root for root in now.roots]
        torch._foreach_addcdiv_(p, now.first, now.below, of_mean)
        torch._foreach_addcdiv_(p, now.g, now.below, of_gradient)


class ErrorFeedback(Around):
    """Error feedback; every stage keeps its last step, also without delay, since the next window may be late."""

    largest_staleness = 1.0
    """The mean delay in updates up to which the correction holds."""
    _LAST = "last_step"
    """In the state of a parameter, the direction of u_(t-1); `scale_of` it says what to take it times."""

    def step_in_time(self) -> None:
        undelayed(self.inner, self._LAST)

    def step_late(self) -> None:
        last, scale_of_last = self._LAST, scale_of(self._LAST)
        for now in late_steps(self.inner):
            delay, states = now.group["staleness"], [self.state[one] for one in now.p]
            known = [at for at, state in enumerate(states) if last in state]
            now.take([delay if last in state else 0.0 for state in states])
            if known:
                before: list[Any] = [states[at][last] for at in known]
                add_scaled([now.p[at] for at in known], before, [delay * states[at][scale_of_last] for at in known])
            for state, direction, scale in zip(states, now.directions, now.scales, strict=True):
                # The optimizer's own state is copied, into the memory of the last one.
                held = direction if now.own else state.get(last, torch.empty_like(direction)).copy_(direction)
                state |= {last: held, scale_of_last: scale}


class Predicted(Around):
    """Predicts the weights of SGD or Adam, plain or with the spike."""

    @torch.no_grad()
    def predicted_weights(self, delay: int) -> WeightsOfDelay:
        """Return each parameter with its expected value after `delay` more updates; nothing is written to parameters or state.

        Parameters that have taken no step, and at a delay of 0 all, are left out: they are expected to stay.
        """
        is_sgd = isinstance(self.wrapped, torch.optim.SGD)
        began, predicted = ("momentum_buffer", self._sgd) if is_sgd else ("exp_avg", self._adam)
        found: WeightsOfDelay = []
        for group in self.param_groups if delay else ():
            p = [one for one in group["params"] if began in self.state.get(one, {})]
            compensated = group["staleness"] if isinstance(self.inner, Spike) else 0.0
            for part in chunked(group, p):
                found += zip(p[part], predicted(p[part], group, delay, compensated), strict=True)
        return found

    def _sgd(self, w: list[Tensor], group: dict[str, Any], delay: int, compensated: float) -> list[Tensor]:
        m, lr, wd = group["momentum"], group["lr"], group["weight_decay"]
        a, b = sgd_shares(group, compensated)
        of_w, of_v = (1.0, 0.0), (0.0, 1.0)  # the weights and the buffer after each step, as shares of w and v of now
        for _ in range(delay):
            g = [wd * share for share in of_w]
            of_v = (m * of_v[0] + g[0], m * of_v[1] + g[1])
            of_w = (of_w[0] - lr * (a * of_v[0] + b * g[0]), of_w[1] - lr * (a * of_v[1] + b * g[1]))
        v = [self.state[one]["momentum_buffer"] for one in w]
        if of_w[0] == 1:
            return list(torch._foreach_add(w, v, alpha=of_w[1]))  # noqa: SLF001  torch names it so
        moved = list(torch._foreach_mul(w, of_w[0]))  # noqa: SLF001
        torch._foreach_add_(moved, v, alpha=of_w[1])
        return moved

    def _adam(self, p: list[Tensor], group: dict[str, Any], delay: int, compensated: float) -> list[Tensor]:
        first, second = ([self.state[one][key] for one in p] for key in ("exp_avg", "exp_avg_sq"))
        counts = [self.state[one]["step"].item() for one in p]
        roots = [(1 - group["betas"][1] ** count) ** 0.5 for count in counts]
        below = torch._foreach_sqrt(second)  # noqa: SLF001
        torch._foreach_add_(below, [group["eps"] * root for root in roots])
        shares = [_adam_shares(group, delay, count, compensated) for count in counts]
        of_mean = [-one[1] * root for one, root in zip(shares, roots, strict=True)]
        (decayed,) = {one[0] for one in shares}
        if decayed == 1:
            moved = list(torch._foreach_addcdiv(p, first, below, of_mean))  # noqa: SLF001
        else:
            moved = list(torch._foreach_mul(p, decayed))  # noqa: SLF001
            torch._foreach_addcdiv_(moved, first, below, of_mean)
        if any(one[2] for one in shares):
            of_decay = [-one[2] * root for one, root in zip(shares, roots, strict=True)]
            torch._foreach_addcdiv_(moved, p, below, of_decay)
        return moved


def _adam_shares(group: dict[str, Any], delay: int, count: float, compensated: float) -> tuple[float, float, float]:
    """Return the share of p in the prediction, and those of m and p in the move, which sqrt(v_hat) + eps divides."""
    beta1, lr, wd = group["betas"][0], group["lr"], group["weight_decay"]
    decoupled = group["decoupled_weight_decay"]
    kept = beta1**compensated
    of_p, of_m, of_decay = 1.0, 0.0, 0.0
    for i in range(1, delay + 1):
        shrunk = 1 - lr * wd if decoupled else 1.0
        bias = 1 - beta1 ** (count + i)
        of_p, of_m = shrunk * of_p, shrunk * of_m + lr * kept * beta1**i / bias
        if not decoupled:
            of_decay += lr * wd * (kept * (1 - beta1**i) / bias + 1 - kept)
    return of_p, of_m, of_decay


class EarlierWeights(Around):
    """Estimates the earlier weights of an optimizer, whose steps it leaves as they are."""

    _MEAN = "mean_step"
    """In the state of a parameter, M; `scale_of` it is S."""

    def step_in_time(self) -> None:
        undelayed(self.inner, self._MEAN)

    def step_late(self) -> None:
        mean, scale_of_mean = self._MEAN, scale_of(self._MEAN)
        for now in late_steps(self.inner):
            now.take([0.0] * len(now.p))
            kept, shares = exp(-2 / now.group["staleness"]), []
            states = [self.state[one] for one in now.p]
            for state, direction, scale in zip(states, now.directions, now.scales, strict=True):
                if mean not in state:
                    state |= {mean: torch.zeros_like(direction), scale_of_mean: 0.0}
                state[scale_of_mean] = kept * state[scale_of_mean] + (1 - kept) * scale
                shares.append((1 - kept) * scale / state[scale_of_mean] if state[scale_of_mean] else 1.0)
            torch._foreach_lerp_([state[mean] for state in states], now.directions, shares)

    @torch.no_grad()
    def earlier_weights(self, delay: int) -> WeightsOfDelay:
        """Return each parameter with an estimate of its value `delay` updates ago; nothing is written to parameters or state.

        Parameters that have taken no step, and at a delay of 0 all, are left out: they are as they were.
        """
        found: WeightsOfDelay = []
        for group in self.param_groups if delay else ():
            w = [one for one in group["params"] if self._MEAN in self.state.get(one, {})]
            for part in chunked(group, w):
                states = [self.state[one] for one in w[part]]
                shares = [delay * state[scale_of(self._MEAN)] for state in states]
                found += zip(w[part], added(w[part], [state[self._MEAN] for state in states], shares), strict=True)
        return found
