"""What a plugin's `build` returns, checked against the contract of its kind, so that the message names the plugin.

Some contracts speak of later calls: a schedule's factors, the values of a loss. Objects of these kinds are handed on inside a
guard, which checks each value as it comes. A guard looks at types and shapes, never at the numbers of a tensor: it waits
for no device, and changes no bit.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
from attrs import frozen

from petra_graph.errors import PluginError, shown
from petra_graph.registry import contracts
from petra_graph.registry.call_faults import (
    CALLBACK,
    FETCH,
    FETCH_TARGETS,
    LOGGER,
    LOSS,
    METRICS,
    TARGET_WEIGHT,
    Call,
    call_faults,
    function_faults,
)
from petra_graph.registry.callback import Callback
from petra_graph.registry.contracts import CallbackDeclaration, DataSetDeclaration, Loss, ParameterGroups
from petra_graph.registry.declaration_faults import described, facts_fault
from petra_graph.registry.registry import Plugin
from petra_graph.registry.trust import run_in_training, run_plugin_code

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")


def checked(plugin: Plugin, arguments: Sequence[Any], built: Any) -> Any:
    """Return what `build` made of the arguments, in a guard where its contract speaks of later calls.

    Raises:
        PluginError: it breaks the contract of the plugin's kind.
    """
    fault = run_plugin_code(lambda: _fault(plugin, arguments, built), f"{plugin.owned} cannot be read")
    if fault:
        raise PluginError(f"{plugin.owned} is broken: {fault}", AUTHOR)
    return _GUARDS[plugin.group](plugin, built) if plugin.group in _GUARDS else built


AUTHOR = "report it to its author"


def _fault(plugin: Plugin, arguments: Sequence[Any], built: Any) -> str:  # noqa: PLR0911  one case a kind
    match plugin.group:
        case contracts.OPTIMIZERS:
            return _optimizer_fault(arguments[0], built)
        case contracts.DATASETS:
            return next(_data_set_faults(plugin, arguments[0], built), "")
        case contracts.LR_SCHEDULES:
            if not callable(built):
                return f"its build returns {described(built)}, not a function of the update"
            return next(function_faults(built, Call("factor", ("u",))), "")
        case contracts.LOSSES:
            return _loss_fault(built)
        case contracts.LOGGERS:
            return _logger_fault(built)
        case contracts.CALLBACKS:
            return next(_callback_faults(cast(CallbackDeclaration, plugin.declaration), built), "")
        case _:
            return ""


def _optimizer_fault(groups: ParameterGroups, built: Any) -> str:
    import torch

    if not isinstance(built, torch.optim.Optimizer):
        return f"its build returns {described(built)}, not a torch.optim.Optimizer"
    needed = [
        name
        for name, parameter in inspect.signature(built.step).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    ]
    if needed:
        return f"its step() needs {' and '.join(needed)}; it is called without, after the backwards of a window"
    return group_fault(groups, built)


def group_fault(groups: ParameterGroups, optimizer: torch.optim.Optimizer) -> str:
    """Return why an optimizer does not step each of a stage's parameters once; "" where it does."""
    given = {id(parameter): parameter for parameter in (*groups.decayed, *groups.undecayed)}
    stepped = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if set(stepped) - set(given):
        count = len(set(stepped) - set(given))
        return f"{count} of the parameters in its groups are not the stage's, but copies or others"
    forgotten = [key for key, parameter in given.items() if parameter.requires_grad and key not in set(stepped)]
    if forgotten:
        return f"its groups leave out {len(forgotten)} of the {len(given)} parameters that it was given"
    if len(stepped) != len(set(stepped)):
        return "a parameter is in its groups twice"
    return ""


def factor_fault(u: int, value: Any) -> str:
    """Return why a value is no factor of the learning rate at update u; "" where it is one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return f"its factor at update {u} is {described(value)}, not a number"
    if not math.isfinite(value) or value < 0:
        return f"its factor at update {u} is {value}, not a finite number of at least 0"
    return ""


@frozen(eq=False)
class _GuardedFactor:
    """A schedule's factors, each of which is a finite number of at least 0."""

    plugin: Plugin
    factor: Callable[[int], float]

    def __call__(self, u: int) -> float:
        value = run_plugin_code(lambda: self.factor(u), f"{self.plugin.owned} failed at update {u}")
        fault = factor_fault(u, value)
        if fault:
            raise PluginError(f"{self.plugin.owned} is broken: {fault}", AUTHOR)
        return float(value)


def _loss_fault(built: Any) -> str:
    import torch

    if not callable(built):
        return f"its build returns {described(built)}, not a function (output, target) -> mean loss"
    if not callable(getattr(built, "metrics", None)):
        return f"its build returns {described(built)} without the method `metrics`"
    parameters = built.named_parameters() if isinstance(built, torch.nn.Module) else ()
    trained = [name for name, parameter in parameters if parameter.requires_grad]
    if trained:
        return f"it has parameters that nothing trains: {', '.join(trained)}; let the head have them, or call requires_grad_(False)"
    forward = Call("forward", LOSS.positional) if isinstance(built, torch.nn.Module) else LOSS
    calls = call_faults(built, [forward, METRICS, TARGET_WEIGHT])
    return next(function_faults(built, Call("loss", LOSS.positional)) if inspect.isfunction(built) else calls, "")


def loss_value_fault(output: Tensor, value: Any) -> str:
    """Return why a value is no loss of an output; "" where it is one."""
    import torch

    if not isinstance(value, torch.Tensor):
        return f"it returns {described(value)}, not a tensor"
    if value.dim():
        return f"it returns a tensor of shape {list(value.shape)}, not a scalar: the mean over the samples"
    if not value.is_floating_point():
        return f"it returns a scalar of {value.dtype}, which has no gradient"
    if torch.is_grad_enabled() and output.requires_grad and not value.requires_grad:
        return "it returns a scalar without a graph, so nothing can be learnt: leave out detach(), item() and argmax()"
    return ""


def metrics_fault(values: Any) -> str:
    """Return why values are no metrics of a loss; "" where they are."""
    import torch

    if not isinstance(values, Mapping):
        return (
            f"its metrics are {described(values)}, not a mapping from names to sums; return {{}} where there are none"
        )
    for name, value in values.items():
        if not isinstance(name, str) or name in RESERVED_METRICS:
            return f"one of its metrics is called {name!r}, which is not a name of their own"
        if not isinstance(value, torch.Tensor) or value.dim():
            came = f"of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else described(value)
            return f"its metric {shown(name)} is {came}, not a scalar tensor: the sum over the samples"
    return ""


def weight_fault(value: Any) -> str:
    """Return why a value is no weight of targets; "" where it is one."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return f"its target_weight is {described(value)}, not a number"
    if not math.isfinite(number) or number < 0:
        return f"its target_weight is {number}, not a finite number of at least 0"
    return ""


RESERVED_METRICS = frozenset({"loss"})
"""Names that a run records itself, beside the metrics of its loss."""


@frozen(eq=False)
class _GuardedLoss:
    """A loss whose every value is a scalar with a graph, whose metrics are scalars by name, and whose weights are numbers."""

    plugin: Plugin
    loss: Loss

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        value = self._called(self.loss, output, target)
        self._refuse(loss_value_fault(output, value))
        return value

    def metrics(self, output: Tensor, target: Tensor) -> Mapping[str, Tensor]:
        """Return the loss's metrics."""
        values = self._called(self.loss.metrics, output, target)
        self._refuse(metrics_fault(values))
        return values

    def target_weight(self, target: Tensor) -> float:
        """Return the loss's weight of targets."""
        failed = f"{self.plugin.owned} failed on targets {list(target.shape)}"
        value = run_in_training(lambda: contracts.target_weight(self.loss, target), failed)
        self._refuse(weight_fault(value))
        return value

    def _called(self, function: Callable[[Tensor, Tensor], T], output: Tensor, target: Tensor) -> T:
        pair = f"outputs {list(output.shape)} and targets {list(getattr(target, 'shape', ()))}"
        return run_in_training(lambda: function(output, target), f"{self.plugin.owned} failed on {pair}")

    def _refuse(self, fault: str) -> None:
        if fault:
            raise PluginError(f"{self.plugin.owned} is broken: {fault}", AUTHOR)


def _data_set_faults(plugin: Plugin, options: Any, built: Any) -> Iterator[str]:
    for name in ("train", "test", "facts"):
        if not hasattr(built, name):
            yield f"its build returns {described(built)} without `{name}`"
    for name in ("train", "test"):
        split = getattr(built, name)
        try:
            samples = len(split)
        except Exception as error:  # noqa: BLE001  its code may raise anything
            yield f"the length of its split `{name}` cannot be had: {type(error).__name__}: {error}"
            return
        if not samples:
            yield f"its split `{name}` is empty; where files are missing, its build raises SpecError"
        if not callable(getattr(split, "fetch", None)):
            yield f"its split `{name}` is {described(split)} without the method `fetch`"
        yield from call_faults(split, [FETCH, FETCH_TARGETS])
    fault = facts_fault(built.facts)
    if fault:
        yield f"its facts {fault}"
    yield from contradictions(cast(DataSetDeclaration, plugin.declaration).facts(options), built.facts)


def contradictions(declared: contracts.DataFacts, opened: contracts.DataFacts) -> Iterator[str]:
    """Yield what an opened data set says otherwise than its declaration; what the declaration leaves open may be anything."""
    for field in attrs.fields(contracts.DataFacts):
        said, found = getattr(declared, field.name), getattr(opened, field.name)
        if said is not None and said != found:
            yield f"its declaration says {field.name} = {shown(said)}, and its files {shown(found)}"


def _logger_fault(built: Any) -> str:
    missing = [f"`{name}`" for name in ("record", "close") if not callable(getattr(built, name, None))]
    if missing:
        return f"its build returns {described(built)} without the method {' and '.join(missing)}"
    return next(call_faults(built, LOGGER), "")


def _callback_faults(declaration: CallbackDeclaration, built: Any) -> Iterator[str]:
    if not isinstance(built, Callback):
        yield f"its build returns {described(built)}, not a Callback"
        return
    yield from call_faults(built, CALLBACK)
    if type(built).stops is not Callback.stops and declaration.changes != "length":
        yield f'it defines `stops`, which is never asked: its declaration says changes = "{declaration.changes}", not "length"'
    if type(built).evaluated_weights is not Callback.evaluated_weights and not declaration.reads_weights:
        yield "it defines `evaluated_weights`, which is never called: its declaration says reads_weights = False, not True"


_GUARDS: Mapping[str, Callable[[Plugin, Any], Any]] = {
    contracts.LR_SCHEDULES: _GuardedFactor,
    contracts.LOSSES: _GuardedLoss,
}
