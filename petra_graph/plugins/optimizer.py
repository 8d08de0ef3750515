"""An optimizer: it steps each parameter of a stage once, at the rate that it is given, and continues a checkpoint to the bit.

The executor sets every group's "lr" before each step, to the multiple of the rate that the group was built with, calls `step()`
without arguments, and drops the gradients. A checkpoint holds the optimizer's `state` of each parameter and the values of its groups,
and nothing else that it remembers.

    lr                           the option of the base learning rate; a group that was built with a multiple of it has that multiple at every step
    stage                        a parameter of this name is given the `StageFacts` of the stage whose parameters these are
    "staleness"                  a key of a group, set to the delay of each update, in updates
    wrapped                      of an optimizer around another one: that one, whose groups and state it has
    evaluated_weights(p)         of one that is judged at other weights than those that it trains, as schedule-free ones: the weights of an evaluation
    predicted_weights(delay)     parameters, each with its expected value after `delay` more updates, with which forwards are computed
    earlier_weights(delay)       parameters, each with an estimate of its value `delay` updates ago, with which backwards are computed
    largest_staleness            the largest delay of a stage with a full pipeline for which its steps are right

The three methods change nothing, and return tensors like the parameters with memory of their own; parameters that are left out stay as they are.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from petra_graph.plugins.contract import Plugin

if TYPE_CHECKING:
    import torch

PREDICTED, EARLIER, LARGEST_STALENESS = "predicted_weights", "earlier_weights", "largest_staleness"
"""Names of an optimizer's methods and of its attribute: see above."""


def optimizer_fault(code: Any) -> str:
    """Return why code is no optimizer here, as the end of a sentence."""
    if "lr" not in inspect.signature(code).parameters:
        return "has no option `lr`, the base learning rate"
    closure = inspect.signature(code.step).parameters.get("closure") if hasattr(code, "step") else None
    if closure is not None and closure.default is closure.empty:
        return "has a step that needs a closure, which evaluates the network again"
    return ""


def optimizer_of(plugin: Plugin, given: tuple[Any, ...], options: dict[str, Any]) -> torch.optim.Optimizer:
    """Call code with the groups, or a class of torch.optim, whose first parameter is `params`, with the groups that torch's optimizers take.

    What it builds has each parameter in one group: one that is left out would silently stay as it began.
    """
    import torch

    (groups,), code = given, plugin.code
    of_torch = next(iter(inspect.signature(code).parameters)) == "params"
    built = code(groups.param_groups(weight_decay=options.get("weight_decay", 0.0)) if of_torch else groups, **options)
    if not isinstance(built, torch.optim.Optimizer):
        raise plugin.broken(f"its build returns {type(built).__name__}, not a torch.optim.Optimizer")
    all_given = {id(one) for one in (*groups.decayed, *groups.undecayed) if one.requires_grad}
    held = Counter(id(one) for group in built.param_groups for one in group["params"])
    if left := len(all_given - held.keys()):
        raise plugin.broken(f"its groups leave out {left} of the {len(all_given)} parameters that it was given")
    if any(count > 1 for count in held.values()):
        raise plugin.broken("a parameter is in its groups twice")
    return built


def rate_ratios(optimizer: torch.optim.Optimizer, base: float) -> tuple[float, ...]:
    """Return each group's learning rate, as the optimizer was built, over the options' own; 1 where that is 0.

    A group that was built with the base rate has exactly 1, and so has one that was not given a rate, and has its class's default
    or no rate at all. Ask before the first step, and before a checkpoint is read: afterwards the groups hold the rates of updates.
    """
    of_class = inspect.signature(type(getattr(optimizer, "wrapped", optimizer))).parameters.get("lr")
    default = None if of_class is None else optimizer.defaults.get("lr")
    unset = default if of_class is not None and default == of_class.default else None
    rates = [group.get("lr", base) for group in optimizer.param_groups]
    return tuple(1.0 if not base or rate == unset else float(rate) / base for rate in rates)


def set_rates(optimizer: torch.optim.Optimizer, rate: float, ratios: Iterable[float], staleness: float) -> None:
    """Give each group its multiple of a learning rate, and the delay of the update in updates where it has the key "staleness".

    A group that was added later has the rate itself.
    """
    for group, ratio in zip(optimizer.param_groups, chain(ratios, repeat(1.0)), strict=False):
        group["lr"] = rate * ratio
        if "staleness" in group:
            group["staleness"] = staleness


def needs_delays(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether the executor counts the delays of a stage: for the "staleness" of groups, for predictions, or for estimates."""
    groups = [] if optimizer is None else optimizer.param_groups
    corrects = hasattr(optimizer, PREDICTED) or hasattr(optimizer, EARLIER)
    return corrects or any("staleness" in group for group in groups)
