"""The first steps of a stage's optimizer, observed for parameters that it does not train.

    a parameter in no group, or in two                              an error: of the optimizer, or of a block that makes parameters later
    a parameter that stands still, though its gradient and its      an error of the optimizer
    learning rate are not zero
    a parameter without a gradient in all of these steps            a warning: its block may use it later

A step is judged by one element of each parameter, one of large gradient, and only where a step of plain gradient
descent would be far from lost in rounding. So tensors are read and none is written, and no random number is drawn. The results
stay on the stage's device until its first steps are over, and are read there together, once (`deferred_reads`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from attrs import define, field
from torch import Tensor, nn

from petra_graph.errors import PluginError, RunFailed, shown
from petra_graph.executor.deferred_reads import floats
from petra_graph.kinds.optimizer import Grouping
from petra_graph.units import listed, noun, plural

STEPS = 3
"""That are observed: the first ones may have a rate of zero, or gradients of zero before a last layer that starts there."""
_FAR_FROM_ROUNDING = 64
"""A step is judged where it is larger than this multiple of the spacing of numbers around the element."""
_LOOKED_AT = 2**16
"""Elements of a parameter, spread over it, at most: those of large ones would take time and memory."""
_SHOWN = 3
"""Parameters that a message lists."""


@define(eq=False)
class FirstSteps:
    """Observes the first steps of one stage."""

    modules: Mapping[str, nn.Module]
    """Of the stage, by node."""
    built: Sequence[nn.Parameter]
    """The parameters that the optimizer was built with."""
    owner: str
    """The optimizer's plugin, as messages name it."""
    deferred: bool = False
    """Whether results are read later (`conclude`)."""
    warn: Callable[[str], None] = lambda _: None
    """Takes a warning."""
    _observed: int = field(default=0, init=False)
    _concluded: bool = field(default=False, init=False)
    _names: dict[str, nn.Parameter] = field(factory=dict, init=False)
    """The trained parameters by "NODE/NAME"; those with a gradient are in `_steps`."""
    _steps: dict[str, list[tuple[Tensor, Tensor]]] = field(factory=dict, init=False)
    """By name, whether each step should have moved a parameter, and whether it did: scalars on the device."""

    @contextmanager
    def observing(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Observe a step with all gradients there.

        Raises:
            RunFailed: a parameter was made after its block was built.
            PluginError: one is not in exactly one group; or, where the results are read at once, one stood still.
        """
        if not self._observed:
            self._names = self._trained()
            self._expect_groups(optimizer)
        rates = {id(each): float(group["lr"]) for group in optimizer.param_groups for each in group["params"]}
        before = {
            name: _element(one, rates.get(id(one), 0.0)) for name, one in self._names.items() if one.grad is not None
        }
        yield
        self._observed += 1
        for name, element in before.items():
            results = self._steps.setdefault(name, [])
            if element is not None:
                at, value, moves = element
                results.append((moves, torch.take(self._names[name].detach(), at) != value))
        if self._observed == STEPS and not self.deferred:
            self.conclude()

    @property
    def observes(self) -> bool:
        """Whether the next step is one of the first; later steps are not observed, and cost nothing."""
        return self._observed < STEPS

    @property
    def due(self) -> bool:
        """Whether all results are there, and wait to be read."""
        return self._observed == STEPS and not self._concluded

    def conclude(self) -> None:
        """Read the results, and warn of parameters without a gradient; a second time, or before any step, this does nothing.

        Raises:
            PluginError: a parameter stood still.
        """
        if self._concluded or not self._observed:
            return
        updates = plural(self._observed, "update")
        self._concluded, self._observed = True, STEPS
        pairs = [(name, pair) for name, results in self._steps.items() for pair in results]
        read = iter(floats([one.double() for _, pair in pairs for one in pair]))
        should, did = set(), set()
        for name, _ in pairs:
            moves, moved = next(read), next(read)
            should |= {name} if moves else set()
            did |= {name} if moved else set()
        unused = [name for name in self._names if name not in self._steps]
        self._names, self._steps = {}, {}
        if lacking := [name for name in should if name not in did]:
            still = _parameters(sorted(lacking))
            message = f"{self.owner} is broken: it leaves {still} still, though gradient and learning rate are not zero"
            raise PluginError(message, "let step() write to every parameter of its groups that has a gradient")
        if unused:
            text = f"no gradient has reached {_parameters(unused)} in the first {updates} of its stage"
            self.warn(f"{text}: let the block use it in forward, or not have it")

    def _trained(self) -> dict[str, nn.Parameter]:
        return {
            f"{node}/{name}": parameter
            for node, module in self.modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def _expect_groups(self, optimizer: torch.optim.Optimizer) -> None:
        known = set(map(id, self.built))
        if later := [name for name, one in self._names.items() if id(one) not in known]:
            message = f"{_parameters(later)} {'was' if len(later) == 1 else 'were'} made after the block was built, so no optimizer has it"
            raise RunFailed(message, "make all parameters in __init__, and write to them in place")
        grouping = Grouping.of(self._names, optimizer)
        for wrong, where in (
            (grouping.left_out, "in none of its groups"),
            (grouping.repeated, "in its groups more than once"),
        ):
            if wrong:
                message = f"{self.owner} is broken: {_parameters(wrong)} {'is' if len(wrong) == 1 else 'are'} {where}"
                raise PluginError(message, "give each parameter of groups.decayed and groups.undecayed to one group")


def _element(parameter: nn.Parameter, rate: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return where a large gradient is, the value there, and whether a step should move it; None: none can be judged."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.is_sparse or not gradient.numel():
        return None
    flat = gradient.detach().reshape(-1)
    stride = -(-len(flat) // _LOOKED_AT)
    at = flat[::stride].abs().argmax() * stride
    value = torch.take(parameter.detach(), at)
    size = torch.take(gradient.detach(), at).abs().clamp(max=1.0) * abs(rate)
    return at, value, size > _FAR_FROM_ROUNDING * torch.finfo(value.dtype).eps * value.abs()


def _parameters(names: Sequence[str]) -> str:
    return f"{noun(len(names), 'parameter')} {listed(map(shown, names), _SHOWN)}"
