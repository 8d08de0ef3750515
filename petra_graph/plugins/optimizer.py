"""An optimizer: it steps each parameter of a stage once, at the rate that it is given, and continues a checkpoint to the bit.

The executor sets every group's "lr" before each step, calls `step()` without arguments, and drops the gradients. A checkpoint holds the
optimizer's `state` and the values of its groups. What it may have besides is in plugins/guide/optimizers.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from petra_graph.plugins.contract import Plugin

PREDICTED, EARLIER, LARGEST_STALENESS = "predicted_weights", "earlier_weights", "largest_staleness"


def optimizer_of(plugin: Plugin, given: tuple[Any, ...], options: dict[str, Any]) -> torch.optim.Optimizer:
    """Call code with the groups, or a class of torch.optim, whose first parameter is `params`, with the groups that torch's optimizers take."""
    (groups,), code = given, plugin.code
    of_torch = next(iter(inspect.signature(code).parameters)) == "params"
    taken = groups.param_groups(weight_decay=options.get("weight_decay", 0.0)) if of_torch else groups
    built: torch.optim.Optimizer = code(taken, **options)
    # A parameter that is left out would silently stay as it began, and one that is there twice would be stepped twice.
    all_given = {id(one) for one in (*groups.decayed, *groups.undecayed) if one.requires_grad}
    held = [id(one) for group in built.param_groups for one in group["params"]]
    if all_given - set(held) or len(held) > len(set(held)):
        raise plugin.broken("its groups have not each of the parameters that it was given, once")
    return built


def rate_ratios(optimizer: torch.optim.Optimizer, base: float) -> tuple[float, ...]:
    """Return each group's learning rate, as the optimizer was built, over the options' own; 1 where that is 0, or the group was given none.

    Ask before the first step, and before a checkpoint is read: afterwards the groups hold the rates of updates.
    """
    of_class = inspect.signature(type(getattr(optimizer, "wrapped", optimizer))).parameters.get("lr")
    default = None if of_class is None else optimizer.defaults.get("lr")
    unset = default if of_class is not None and default == of_class.default else None
    rates = [group.get("lr", base) for group in optimizer.param_groups]
    return tuple(1.0 if not base or rate == unset else float(rate) / base for rate in rates)


def set_rates(optimizer: torch.optim.Optimizer, rate: float, ratios: Iterable[float], staleness: float) -> None:
    """Give each group its multiple of a learning rate, one that was added later the rate itself, and the update's delay where it has "staleness"."""
    for group, ratio in zip(optimizer.param_groups, chain(ratios, repeat(1.0)), strict=False):
        group["lr"] = rate * ratio
        if "staleness" in group:
            group["staleness"] = staleness


def needs_delays(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether the executor counts the delays of a stage: for the "staleness" of groups, for predictions, or for estimates."""
    groups = [] if optimizer is None else optimizer.param_groups
    corrects = hasattr(optimizer, PREDICTED) or hasattr(optimizer, EARLIER)
    return corrects or any("staleness" in group for group in groups)
