"""A stage's parameter update: average over the window, clip, set the learning rate, step.

Gradients are summed in each parameter's `grad` by the backwards of a window, and divided once by its weight: the sum of
its micro-batches' weights, and so its length where all their targets count (PETRA algorithm 1, lines 18 to 22).

An optimizer may build groups with other rates than the stage's: a group has the same multiple of lr(u) at every step. One that is built
with a "staleness" is given the delay of each update there. The rate is a function of the stage's own update count u = 0, 1, ...

    lr(u) = base * goyal * warm-up(u) * factor(u) * by-delay(u)

    goyal        batch * k * replicas / 256 with `scaling = "goyal"`, else 1 (Goyal et al. 2017, https://arxiv.org/abs/1706.02677)
    warm-up      (u+1)/W for u < W, then 1
    factor       the schedule's: the same in all stages, unless it asks for a stage's facts
    by-delay     max(1, D(u)) ** -(1 - u/T) for u < T with `delay_epochs` of T updates, else 1; D(u) is the stage's mean delay in updates

By-delay is technique T1 of PipeMare (Yang et al. 2021, https://arxiv.org/abs/1910.05124), which counts updates from 0, as here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from inspect import unwrap
from operator import attrgetter, itemgetter
from typing import Any

import torch
from attrs import define, evolve, field
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim import optimizer as torch_hooks

from petra_graph.blocks.differentiation import without_graph
from petra_graph.errors import RunFailed
from petra_graph.plugins.optimizer import set_rates
from petra_graph.plugins.stage_facts import UNDELAYED, Horizon, StageFacts
from petra_graph.spec.model import ClipSpec, Spec

GOYAL_BATCH = 256
LearningRate = Callable[[int], float]


def horizon(spec: Spec, micro_batches_per_epoch: int) -> Horizon:
    """Return a run's numbers of updates: an epoch makes ceil(micro-batches / k)."""
    per_epoch = -(-micro_batches_per_epoch // spec.method.accumulation)
    return Horizon(
        updates=per_epoch * spec.run.epochs,
        updates_per_epoch=per_epoch,
        warmup_updates=round(spec.lr_schedule.warmup_epochs * per_epoch),
    )


def learning_rate(
    spec: Spec, base: float, factor: Callable[[int], float], horizon: Horizon, stage: StageFacts = UNDELAYED
) -> LearningRate:
    """Return lr(u) of a stage for a base learning rate and a schedule's factor."""
    scale = base
    if spec.lr_schedule.scaling == "goyal":
        scale *= spec.data.batch * spec.method.accumulation * spec.partition.replicas / GOYAL_BATCH
    warmup = horizon.warmup_updates
    annealed = round(spec.lr_schedule.delay_epochs * horizon.updates_per_epoch)

    def rate(update: int) -> float:
        ramp = (update + 1) / warmup if update < warmup else 1.0
        full = scale * ramp * factor(update)
        if update >= annealed:
            return full
        return full * float(max(1.0, stage.staleness_of_update(update)) ** (update / annealed - 1))

    return rate


# --- when the host reads results from devices --------------------------------------------------------------------------
#
# Reading a number from a GPU makes the host wait for all work that it has queued, and leaves the GPU without work meanwhile. So
# numbers that a run looks at (losses, metrics, norms, magnitudes) stay on their device, and are read together every few
# micro-batches. On a processor there is nothing to wait for, and each is read at once.
#
#     device       losses and metrics are read                    a step whose gradient is not finite
#     processor    every micro-batch                              is refused before it changes the parameters
#     GPU          every `run.log_every` micro-batches, before    gets a gradient of zeros, so that parameters stay finite; the
#                  every checkpoint, and at the end of an epoch   run fails at the next reading, which names the first one

MOST = 1000
"""Micro-batches between two readings, at most: the numbers of each stay in memory."""


def read_interval(device: torch.device, log_every: int) -> int:
    """Return the number of micro-batches after which results on a device are read."""
    return 1 if device.type == "cpu" else min(log_every, MOST)


def floats(values: Sequence[Tensor | float]) -> list[float]:
    """Return scalars of one device and type as numbers, read together."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not tensors or len(tensors) < len(values):
        return [float(value) for value in values]
    return [float(value) for value in torch.stack([tensor.detach().reshape(()) for tensor in tensors]).tolist()]


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done all that is queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_SAME_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers, by the bytes of a floating-point number."""


@define(eq=False, slots=False)
class Updater:
    """One stage's optimizer, with the averaging, clipping and learning rate of its step."""

    parameters: Sequence[nn.Parameter]
    optimizer: torch.optim.Optimizer | None
    """None where the stage has no parameters."""
    rate: LearningRate
    clip: ClipSpec | None
    read_interval: int = 1
    """Micro-batches between two readings of the stage's device; above 1, the norms of gradients are read later, together."""
    owner: str = "the optimizer"
    """As messages name the optimizer's plugin."""
    ratios: Sequence[float] = ()
    """Of the optimizer's groups, as it was built (`rate_ratios`)."""
    stage: StageFacts | None = None
    """The facts of the stage; None where its optimizer needs no delays (`needs_delays`)."""
    built: Sequence[Mapping[str, str]] = field(default=(), init=False)
    """The values of the optimizer's groups as it was built, as Python writes them."""
    _step: Callable[[], object] = field(default=lambda: None, init=False)
    norms: list[tuple[int, Tensor]] = field(factory=list, init=False)
    """By update, counted from 1, until they are read together."""
    updates: int = field(default=0, init=False)
    """The stage's own count of steps, u."""
    window: int = field(default=0, init=False)
    """Micro-batches accumulated since the last step."""
    weight: float = field(default=0.0, init=False)
    """The sum of their weights; with replicas, at the step, its mean over them."""
    late: float = field(default=0, init=False)
    """The sum of their delays in updates; 0 without `stage`."""
    staleness: float = field(default=0.0, init=False)
    """The delay of the latest window, the mean of those."""

    def __attrs_post_init__(self) -> None:
        if self.optimizer is not None:
            groups = self.optimizer.param_groups
            self.built = [{key: repr(one) for key, one in group.items() if key != "params"} for group in groups]
            self._step = step_of(self.optimizer)

    def filled(self, micro_batch: int) -> None:
        """Count delays from where the pipeline filled again, before this micro-batch of the run; 0: it never did."""
        if self.stage is not None:
            self.stage = evolve(self.stage, filled=micro_batch)

    def accumulated(self, micro_batch: int = 0, weight: float = 1.0) -> None:
        """Count one more micro-batch in the window, whose gradients are sums with this weight."""
        self.window += 1
        self.weight += weight
        if self.stage is not None:
            self.late += self.stage.staleness(micro_batch)

    def average(self) -> None:
        """Turn the window's sums into means, once; afterwards the window is empty. Without weight, the gradients are zeros."""
        if self.weight not in {0.0, 1.0} and (gradients := self._gradients()):
            torch._foreach_div_(gradients, self.weight)
        if self.stage is not None and self.window:
            self.staleness = self.late / self.window
        self.window, self.weight, self.late = 0, 0.0, 0

    def squared_norm(self) -> Tensor:
        """Return the squared norm of the window's mean gradient, a scalar on the stage's device in float64."""
        self.average()
        squares = [gradient.double().square().sum() for gradient in self._gradients()]
        return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)

    def step(self, norm: Tensor | None = None) -> None:
        """Step with the window's mean gradient, clipped by its own norm, or by `norm` where all stages share one; RunFailed: that norm is not finite."""
        self.average()
        if self.optimizer is not None:
            if self.clip is not None:
                self._clip(self.clip, norm)
            if self.read_interval > 1:
                self._gate()
            set_rates(self.optimizer, self.rate(self.updates), self.ratios, self.staleness)
            try:
                self._step()
            except Exception as error:
                error.add_note(f"{self.owner}, at update {self.updates + 1}")
                raise
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        self.updates += 1

    def check(self) -> None:
        """Read the norms since the last reading; RunFailed: a norm was not finite."""
        pending, self.norms = self.norms, []
        for (update, _), norm in zip(pending, floats([norm for _, norm in pending]), strict=True):
            if not math.isfinite(norm):
                hint = "the parameters are as before that update; " if self.read_interval == 1 else ""
                message = f"update {update}: the norm of the gradient is {norm}, and cannot be clipped"
                raise RunFailed(message, hint=f"{hint}a lower learning rate, or a warm-up, may help")

    def _clip(self, clip: ClipSpec, norm: Tensor | None) -> None:
        if clip.by == "value":
            nn.utils.clip_grad_value_(self.parameters, clip.limit)
            return
        total = self.squared_norm().sqrt() if norm is None else norm
        self.norms.append((self.updates + 1, total))
        if self.read_interval == 1:
            self.check()
        if gradients := self._gradients():
            factor = torch.where(total > clip.limit, clip.limit / total, 1.0)
            torch._foreach_mul_(gradients, factor.to(gradients[0].device, non_blocking=True))

    def _gate(self) -> None:
        """Replace gradients of which one is not finite by zeros, since it is read too late to refuse the step."""
        if not (gradients := self._gradients()):
            return
        largest = torch.stack(torch._foreach_norm(gradients, math.inf)).amax()  # noqa: SLF001  torch names it so
        if self.clip is None or self.clip.by == "value":
            self.norms.append((self.updates + 1, largest))
        finite = largest < math.inf
        # Their bits are multiplied by 1 or 0, as integers, for infinity times 0 is not 0: a few kernels, however many parameters.
        for size, integer in _SAME_SIZE.items():
            if bits := [gradient.view(integer) for gradient in gradients if gradient.element_size() == size]:
                torch._foreach_mul_(bits, finite.to(integer))

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


# --- the steps of torch's SGD, Adam and AdamW on a processor ------------------------------------------------------------
#
# In a few calls for all parameters: torch's arithmetic, state and bits. Around its arithmetic torch's `step` looks at devices,
# types and hooks, parameter by parameter, which takes an eighth of a small micro-batch. The state stays where torch has it, so
# checkpoints are the same, and a step of torch's own can follow at any time. Gradients are changed in place: a step is the last that
# needs them.
#
#     SGD      d = g + decay p;  b = momentum b + (1 - dampening) d;  p -= lr (d + momentum b), or lr b without Nesterov
#     Adam     g = g + decay p;  m = lerp(m, g, 1 - beta1);  v = beta2 v + (1 - beta2) g^2
#              p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
#     AdamW    p = (1 - lr decay) p instead of g + decay p

_Group = dict[str, Any]
_State = MutableMapping[Tensor, dict[str, Any]]
_GRADIENT, _BUFFER = attrgetter("grad"), itemgetter("momentum_buffer")
_READ = ("lr", "momentum", "dampening", "nesterov", "betas", "eps")
"""What steps read of a group besides its decay."""
_UNUSUAL = ("fused", "maximize", "amsgrad", "capturable", "differentiable")


def step_of(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Return what steps an optimizer: a few calls for torch's SGD, Adam and AdamW, else its own `step`."""
    kind = next((kind for kind in _STEPS if isinstance(optimizer, kind)), None)
    if kind is None or unwrap(type(optimizer).step) is not unwrap(kind.step):
        return optimizer.step
    for group in optimizer.param_groups:
        # On the meta device, where steps are measured, torch's own is.
        elsewhere = any(one.device.type != "cpu" for one in group["params"])
        if elsewhere or isinstance(group["lr"], Tensor) or any(map(group.get, _UNUSUAL)):
            return optimizer.step
    stepped = _STEPS[kind]
    own_hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks  # noqa: SLF001  nothing public says it
    hooks = *own_hooks, torch_hooks._global_optimizer_pre_hooks, torch_hooks._global_optimizer_post_hooks  # noqa: SLF001

    def step() -> None:
        if any(hooks) or "step" in vars(optimizer):
            optimizer.step()
            return
        with without_graph():
            for group, parameters, gradients in _decayed(optimizer.param_groups):
                stepped(group, optimizer.state, parameters, gradients)

    return step


def _decayed(groups: Sequence[_Group]) -> Sequence[tuple[_Group, list[Tensor], list[Tensor]]]:
    """Let weights decay; return the parameters and gradients of each group, those of groups that differ in their decay alone together."""
    found: list[tuple[_Group, list[Tensor], list[Tensor]]] = []
    of_latest: list[Any] = []
    for group in groups:
        parameters = [one for one in group["params"] if one.grad is not None]
        gradients, decay = list(map(_GRADIENT, parameters)), group["weight_decay"]
        if not parameters:
            continue
        if decay and group.get("decoupled_weight_decay"):
            torch._foreach_mul_(parameters, 1 - group["lr"] * decay)
        elif decay:
            torch._foreach_add_(gradients, parameters, alpha=decay)
        # An author may have more in a group or among the defaults, such as masks, which cannot be compared by `==`.
        values = list(map(group.get, _READ))
        if values == of_latest:
            found[-1][1].extend(parameters)
            found[-1][2].extend(gradients)
        else:
            found.append((group, parameters, gradients))
            of_latest = values
    return found


def _sgd(group: _Group, state: _State, parameters: list[Tensor], gradients: list[Tensor]) -> None:
    if momentum := group["momentum"]:
        own = list(map(state.__getitem__, parameters))
        if all(own):
            buffers = list(map(_BUFFER, own))
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, gradients, alpha=1 - group["dampening"])
        else:  # the first step of some
            for held, d in zip(own, gradients, strict=True):
                if held:
                    held["momentum_buffer"].mul_(momentum).add_(d, alpha=1 - group["dampening"])
                else:
                    held["momentum_buffer"] = d.clone()
            buffers = list(map(_BUFFER, own))
        if group["nesterov"]:
            torch._foreach_add_(gradients, buffers, alpha=momentum)
        else:
            gradients = buffers
    torch._foreach_add_(parameters, gradients, alpha=-group["lr"])


def _adam(group: _Group, state: _State, parameters: list[Tensor], gradients: list[Tensor]) -> None:
    lr, (beta1, beta2), eps = group["lr"], group["betas"], group["eps"]
    for one in parameters:
        if not state[one]:
            kind = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
            state[one] |= {"step": torch.tensor(0.0, dtype=kind)}
            state[one] |= {name: torch.zeros_like(one) for name in ("exp_avg", "exp_avg_sq")}
    own = [state[one] for one in parameters]
    counts, means, squares = ([one[name] for one in own] for name in ("step", "exp_avg", "exp_avg_sq"))
    torch._foreach_add_(counts, 1.0)
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
    # One by one, so that a step needs the memory of the largest parameter and not of all.
    for parameter, count, mean, square in zip(parameters, counts, means, squares, strict=True):
        t = count.item()
        denominator = (square.sqrt() / (1 - beta2**t) ** 0.5).add_(eps)
        parameter.addcdiv_(mean, denominator, value=-(lr / (1 - beta1**t)))


_STEPS: dict[type[torch.optim.Optimizer], Callable[[_Group, _State, list[Tensor], list[Tensor]], None]] = {
    SGD: _sgd,
    Adam: _adam,
}
