"""An optimizer: it steps each parameter of a stage once, at the rate that it is given, and continues a checkpoint to the bit.

The executor sets every group's "lr" before each step, to the multiple of the rate that the group was built with, calls `step()`
without arguments, and drops the gradients. A group that is built with a "staleness" has the delay of the update there besides. A
checkpoint holds the optimizer's `state` of each parameter and the values of its groups, and nothing else that it remembers.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
from attrs import frozen

from petra_graph.errors import PetraGraphError
from petra_graph.kinds.declaration import Declaration, described
from petra_graph.kinds.expected_calls import ExpectedCall, call_faults
from petra_graph.kinds.plugin import Plugin, build_plugin, knows_stage
from petra_graph.kinds.plugin_kind import PluginKind, called
from petra_graph.kinds.stage_facts import UNDELAYED

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

K = TypeVar("K")
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

    def faults(self) -> Iterator[str]:
        rate = attrs.fields_dict(self.options).get("lr")
        if rate is None:
            yield f"has options without `lr` ({self.options.__name__})"
        elif rate.type is not float:
            yield f"has options whose `lr` is of type {getattr(rate.type, '__name__', rate.type)}, not float"


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


@frozen(kw_only=True)
class Grouping(Generic[K]):
    """How an optimizer's groups hold the parameters that it was given."""

    left_out: Sequence[K]
    """Parameters that are not in any group, by the caller's names."""
    repeated: Sequence[K]
    """Parameters that are in several groups, or in one twice."""
    others: int
    """Parameters in its groups that it was not given."""

    @classmethod
    def of(cls, given: Mapping[K, nn.Parameter], optimizer: torch.optim.Optimizer) -> Grouping[K]:
        """Compare parameters, by any names, with the groups of their optimizer."""
        counts = Counter(id(each) for group in optimizer.param_groups for each in group["params"])
        known = {id(parameter) for parameter in given.values()}
        return cls(
            left_out=[name for name, one in given.items() if one.requires_grad and not counts[id(one)]],
            repeated=[name for name, one in given.items() if counts[id(one)] > 1],
            others=len(counts.keys() - known),
        )


def _built_faults(_plugin: Plugin, arguments: Sequence[Any], built: Any) -> Iterator[str]:
    import torch

    if not isinstance(built, torch.optim.Optimizer):
        yield f"its build returns {described(built)}, not a torch.optim.Optimizer"
    needed = [
        name
        for name, parameter in inspect.signature(built.step).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    ]
    if needed:
        yield f"its step() needs {' and '.join(needed)}; it is called without, after the backwards of a window"
    groups: ParameterGroups = arguments[0]
    given = {id(parameter): parameter for parameter in (*groups.decayed, *groups.undecayed)}
    grouping = Grouping.of(given, built)
    if grouping.others:
        yield f"{grouping.others} of the parameters in its groups are not the stage's, but copies or others"
    if grouping.left_out:
        yield f"its groups leave out {len(grouping.left_out)} of the {len(given)} parameters that it was given"
    if grouping.repeated:
        yield "a parameter is in its groups twice"
    of_delay = [ExpectedCall(name, ("delay",)) for name in (PREDICTED, EARLIER)]
    yield from call_faults(built, [ExpectedCall("evaluated_weights", ("parameter",)), *of_delay])
    if predicts(built) and estimates(built):
        yield f"it has {PREDICTED} and {EARLIER}: a forward that is predicted has not the parameters of its time"
    most = getattr(built, LARGEST_STALENESS, 0.0)
    if not isinstance(most, int | float) or not most >= 0:
        yield f"its {LARGEST_STALENESS} is {most!r}, not a number of at least 0"


def evaluated_weights_fault(parameter: Tensor, weights: Any) -> str:
    """Return why a parameter cannot have these weights in an evaluation; "" where it can."""
    import torch

    if not isinstance(weights, torch.Tensor):
        return f"its evaluated_weights returns {described(weights)}, not a tensor"
    came, wanted = _form(weights), _form(parameter)
    return "" if came == wanted else f"its evaluated_weights returns {came} for a parameter {wanted}"


def _form(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} in {str(tensor.dtype).removeprefix('torch.')}"


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


def weights_of_delay_fault(method: str, parameters: Sequence[Tensor], answer: Any) -> str:
    """Return why parameters cannot have these values, as `PREDICTED` or `EARLIER` returns them; "" where they can."""
    import torch

    said, known, seen = f"its {method} returns", set(map(id, parameters)), set()
    pairs = answer if isinstance(answer, list | tuple) else [answer]
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):  # noqa: PLR2004  a pair
        return f"{said} {described(answer)}, not a list of (parameter, tensor)"
    for parameter, weights in pairs:
        if id(parameter) not in known or id(parameter) in seen:
            again = "a parameter twice" if id(parameter) in known else "values of what is not a parameter of its stage"
            return f"{said} {again}"
        seen.add(id(parameter))
        if not isinstance(weights, torch.Tensor):
            return f"{said} {described(weights)} for a parameter, not a tensor"
        came, wanted = (f"{_form(one)} on {one.device}" for one in (weights, parameter))
        if came != wanted:
            return f"{said} {came} for a parameter {wanted}"
    own = {one.untyped_storage().data_ptr() for one in parameters if one.numel()}
    shared = any(weights.numel() and weights.untyped_storage().data_ptr() in own for _, weights in pairs)
    return f"{said} a tensor in the memory of a parameter" if shared else ""


OPTIMIZER = PluginKind(
    noun="optimizer",
    group="petra_graph.optimizers",
    table="optimizer",
    declaration=OptimizerDeclaration,
    form=called(
        OptimizerDeclaration,
        "groups, options",
        "torch.optim.Optimizer",
        more=", whose options are an attrs class with a float `lr`",
        stage=True,
    ),
    built_faults=_built_faults,
    options_last=True,
)
