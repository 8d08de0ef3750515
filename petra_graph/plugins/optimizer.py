"""An optimizer: it steps each parameter of a stage once, at the rate that it is given, and continues a checkpoint to the bit.

The executor sets every group's "lr" before each step, to the multiple of the rate that the group was built with, calls `step()`
without arguments, and drops the gradients. A group that is built with a "staleness" has the delay of the update there besides. A
checkpoint holds the optimizer's `state` of each parameter and the values of its groups, and nothing else that it remembers.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from attrs import frozen

from petra_graph.errors import PetraGraphError
from petra_graph.plugins.contract import Declaration, Plugin, build_plugin, knows_stage
from petra_graph.plugins.stage_facts import UNDELAYED

if TYPE_CHECKING:
    import torch
    from torch import nn

PREDICTED = "predicted_weights"
"""The method of an optimizer for forwards, of (delay): see `OptimizerDeclaration`."""
EARLIER = "earlier_weights"
"""The method of an optimizer for backwards, of (delay)."""
LARGEST_STALENESS = "largest_staleness"
"""The attribute of an optimizer that bounds the delay of its stage."""


@frozen(kw_only=True)
class OptimizerDeclaration(Declaration):
    """An optimizer; `build` names a function (ParameterGroups, options) -> torch.optim.Optimizer.

    A function (ParameterGroups, options, stage) is given the `StageFacts` of the stage whose parameters these are.

    The options class must have a float field `lr`, the base learning rate. The executor sets each group's "lr" before
    every step. A group that was built with a multiple of `options.lr` has that multiple of the rate at every step. In a group that was
    built with the key "staleness", it sets the delay of this update, in updates. An optimizer around another one has that one as its
    attribute `wrapped`, and its groups and state.

    An optimizer that is judged at other weights than those that it trains, as schedule-free ones are, has the method
    `evaluated_weights(parameter) -> Tensor`: the weights of an evaluation, like the parameter. It changes nothing.

    An optimizer whose forwards use the parameters that their backwards are expected to find has the method
    `predicted_weights(delay: int) -> list[(parameter, Tensor)]`: parameters with their expected values after `delay` more updates, in
    tensors like them with memory of their own. Parameters that it leaves out are expected to stay. It changes nothing.

    An optimizer whose backwards use an estimate of the parameters that their forwards had has the method `earlier_weights(delay: int)`
    instead, which likewise returns parameters with their values `delay` updates ago.

    An optimizer whose steps are right for small delays alone has the attribute `largest_staleness`: the largest delay of a stage
    while the pipeline is full, in updates.
    """


@frozen(kw_only=True)
class ParameterGroups:
    """A stage's parameters, split by whether weight decay (and LARS's trust ratio) applies to them; either may be empty.

    Attributes:
        decayed: those to which it applies.
        undecayed: normalisation parameters, biases, and those that their block names in its attribute `undecayed`.
        tables: those of `decayed` that have a row for each token, position or class: embeddings, a head's weights, and what a block
            names in its attribute `tables`.
    """

    decayed: Sequence[nn.Parameter]
    undecayed: Sequence[nn.Parameter]
    tables: Sequence[nn.Parameter] = ()

    def param_groups(self, *, weight_decay: float) -> list[dict[str, Any]]:
        """Return the two groups as torch's optimizers take them, the decayed parameters first; the others have a decay of 0."""
        return [
            {"params": list(self.decayed), "weight_decay": weight_decay},
            {"params": list(self.undecayed), "weight_decay": 0.0},
        ]

    def hidden_matrices(self) -> list[nn.Parameter]:
        """Return the decayed parameters of two dimensions or more that are not tables, as weights of linear layers and kernels."""
        tables = set(map(id, self.tables))
        return [one for one in self.decayed if one.dim() > 1 and id(one) not in tables]


BuildOptimizer = Callable[[ParameterGroups, Any], "torch.optim.Optimizer"]
"""Signature behind `OptimizerDeclaration.build`: (groups, options) -> the optimizer of one stage; it may have a parameter `stage`."""


def rate_ratios(optimizer: torch.optim.Optimizer, base: float) -> tuple[float, ...]:
    """Return each group's learning rate, as the optimizer was built, over the options' own; 1 where that is 0.

    A group that was built with the base rate has exactly 1, and so has one that was not given a rate, and has its class's default
    or no rate at all. Ask before the first step, and before a checkpoint is read: afterwards the groups hold the rates of updates.
    """
    of_class = inspect.signature(type(getattr(optimizer, "wrapped", optimizer))).parameters.get("lr")
    none_given = of_class is not None and optimizer.defaults.get("lr") == of_class.default

    def ratio(rate: float) -> float:
        unset = none_given and rate == optimizer.defaults["lr"]
        return 1.0 if unset or not base else float(rate) / base

    return tuple(ratio(group.get("lr", base)) for group in optimizer.param_groups)


def set_rates(optimizer: torch.optim.Optimizer, rate: float, ratios: Iterable[float], staleness: float) -> None:
    """Give each group its multiple of a learning rate, and the delay of the update in updates where it has the key "staleness".

    A group that was added later has the rate itself.
    """
    for group, ratio in zip(optimizer.param_groups, chain(ratios, repeat(1.0)), strict=False):
        group["lr"] = rate * ratio
        if "staleness" in group:
            group["staleness"] = staleness


def used_optimizer(plugin: Plugin, arguments: Sequence[Any], built: Any) -> torch.optim.Optimizer:
    """Expect that an optimizer has each parameter in one group: one that is left out would silently stay as it began."""
    import torch

    if not isinstance(built, torch.optim.Optimizer):
        raise plugin.broken(f"its build returns {type(built).__name__}, not a torch.optim.Optimizer")
    groups: ParameterGroups = arguments[0]
    given = [id(one) for one in (*groups.decayed, *groups.undecayed) if one.requires_grad]
    held = Counter(id(one) for group in built.param_groups for one in group["params"])
    if left := len(set(given) - held.keys()):
        raise plugin.broken(f"its groups leave out {left} of the {len(given)} parameters that it was given")
    if any(count > 1 for count in held.values()):
        raise plugin.broken("a parameter is in its groups twice")
    return built


def predicts(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether a stage's forwards use the parameters that its optimizer predicts; it then needs the facts of its stage."""
    return hasattr(optimizer, PREDICTED)


def estimates(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether a stage's backwards use the optimizer's estimate of their forwards' parameters; it then needs the facts of its stage."""
    return hasattr(optimizer, EARLIER)


def needs_delays(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether the executor counts the delays of a stage: for the "staleness" of groups, for predictions, or for estimates."""
    if optimizer is None:
        return False
    return predicts(optimizer) or estimates(optimizer) or any("staleness" in group for group in optimizer.param_groups)


def asks_for_delay(plugin: Plugin, options: Any) -> bool:
    """Whether an optimizer asks for the facts of its stage, or what it builds needs delays; one that cannot be built does not."""
    import torch
    from torch import nn

    groups = ParameterGroups(decayed=[nn.Parameter(torch.zeros(2, 2))], undecayed=[nn.Parameter(torch.zeros(2))])
    try:
        return knows_stage(plugin) or needs_delays(build_plugin(plugin, groups, options, stage=UNDELAYED))
    except PetraGraphError:
        return False
