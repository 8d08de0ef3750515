"""An optimizer: it steps each parameter of a stage once, at the rate that it is given, and continues a checkpoint to the bit.

The executor sets every group's "lr" before each step, to the multiple of the rate that the group was built with, calls `step()`
without arguments, and drops the gradients. A group that is built with a "staleness" has the delay of the update there besides. A
checkpoint holds the optimizer's `state` of each parameter and the values of its groups, and nothing else that it remembers.
"""

from __future__ import annotations

import inspect
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs
from attrs import evolve, frozen

from petra_graph.errors import PetraGraphError
from petra_graph.kinds.broken_promise import BrokenPromise, all_equal, name_of
from petra_graph.kinds.declaration import Declaration, described
from petra_graph.kinds.declaration_promises import DECLARATION
from petra_graph.kinds.expected_calls import ExpectedCall, call_faults
from petra_graph.kinds.generators import moved_since, seeded, states
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import Part, PluginKind, Promise, called
from petra_graph.kinds.plugin_trial import StageTrial

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

K = TypeVar("K")
_DECAYED, _UNDECAYED = ((4, 3), (2, 3, 3, 3)), ((4,), (2,))
_STEPS = 4
"""Before something changes, and after it."""
_RATE = 0.01
"""The rate of a trial, where the options' own rate is 0."""
_ACROSS = 0.01
"""The cosine of steps and gradient below which steps go neither up nor down."""
PREDICTED = "predicted_weights"
"""The method of an optimizer for forwards, of (delay): see `OptimizerDeclaration`."""
EARLIER = "earlier_weights"
"""The method of an optimizer for backwards, of (delay)."""
LARGEST_STALENESS = "largest_staleness"
"""The attribute of an optimizer that bounds the delay of its stage."""
Rate = Callable[[int], float]


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


def has_staleness(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a group has the key "staleness", which then has the delay of the update at every step."""
    return any("staleness" in group for group in optimizer.param_groups)


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
    came, wanted = (f"{list(one.shape)} in {name_of(one.dtype)}" for one in (weights, parameter))
    return "" if came == wanted else f"its evaluated_weights returns {came} for a parameter {wanted}"


def predicts(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether a stage's forwards use the parameters that its optimizer predicts; it then needs the facts of its stage."""
    return hasattr(optimizer, PREDICTED)


def estimates(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether a stage's backwards use the optimizer's estimate of their forwards' parameters; it then needs the facts of its stage."""
    return hasattr(optimizer, EARLIER)


def needs_delays(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether the executor counts the delays of a stage: for the "staleness" of groups, for predictions, or for estimates."""
    return optimizer is not None and (has_staleness(optimizer) or predicts(optimizer) or estimates(optimizer))


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
        came, wanted = (f"{list(one.shape)} in {name_of(one.dtype)} on {one.device}" for one in (weights, parameter))
        if came != wanted:
            return f"{said} {came} for a parameter {wanted}"
    own = {one.untyped_storage().data_ptr() for one in parameters if one.numel()}
    shared = any(weights.numel() and weights.untyped_storage().data_ptr() in own for _, weights in pairs)
    return f"{said} a tensor in the memory of a parameter" if shared else ""


@frozen(kw_only=True)
class OptimizerTrial(StageTrial):
    """An optimizer with options.

    Attributes:
        plugin: the optimizer.
        options: an instance of its own options class.
        stages: as of `StageTrial`.
        decayed: shapes of the parameters to which weight decay applies.
        undecayed: shapes of the others.
        seed: parameters and gradients follow from it.
    """

    decayed: Sequence[Sequence[int]] = _DECAYED
    undecayed: Sequence[Sequence[int]] = _UNDECAYED
    seed: int = 0

    @staticmethod
    def of_kind() -> PluginKind:
        return OPTIMIZER

    @property
    def asks(self) -> bool:
        """Whether it asks for the facts of its stage, or what it builds needs delays."""
        try:
            return super().asks or needs_delays(self.build(self.parameters(), self.options))
        except PetraGraphError:  # its construction is broken
            return False

    @property
    def base(self) -> float:
        """The base learning rate."""
        return float(self.options.lr) or _RATE

    def parameters(self) -> ParameterGroups:
        """Return new parameters, the same at every call."""
        import torch
        from torch import nn

        generator = torch.Generator().manual_seed(self.seed)

        def drawn(shapes: Sequence[Sequence[int]]) -> list[nn.Parameter]:
            return [nn.Parameter(torch.randn(tuple(shape), generator=generator)) for shape in shapes]

        return ParameterGroups(decayed=drawn(self.decayed), undecayed=drawn(self.undecayed))

    def stage(self) -> _Stage:
        """Return a stage's parameters with a new optimizer of them."""
        groups = self.parameters()
        optimizer = self.build_raw(groups, self.options)
        return _Stage(
            groups=groups,
            optimizer=optimizer,
            ratios=rate_ratios(optimizer, self.options.lr),
            trial=self,
        )


@frozen(kw_only=True, eq=False)
class _Stage:
    groups: ParameterGroups
    optimizer: torch.optim.Optimizer
    ratios: Sequence[float]
    trial: OptimizerTrial

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [*self.groups.decayed, *self.groups.undecayed]

    def values(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]

    def evaluated_weights(self) -> list[Any]:
        """Return copies of what the optimizer returns for each parameter."""
        import torch

        with torch.no_grad():
            found = [self.optimizer.evaluated_weights(parameter) for parameter in self.parameters]  # type: ignore[attr-defined]
        return [one.detach().clone() if isinstance(one, torch.Tensor) else one for one in found]

    def weights_of_delay(self, method: str, delay: int) -> Any:
        """Return what the optimizer's `PREDICTED` or `EARLIER` returns."""
        import torch

        with torch.no_grad():
            return getattr(self.optimizer, method)(delay)

    def step(self, steps: Iterable[int], rate: Rate | None = None, without: Collection[int] = ()) -> None:
        """Take steps as the executor does; parameters `without` have no gradient."""
        import torch

        for number in steps:
            generator = torch.Generator().manual_seed(self.trial.seed + 1 + number)
            for index, parameter in enumerate(self.parameters):
                gradient = torch.randn(parameter.shape, generator=generator)
                parameter.grad = None if index in without else gradient
            self.set(self.trial.base if rate is None else rate(number), number)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def set(self, rate: float, number: int) -> None:
        """Set what the executor sets before each step."""
        set_rates(self.optimizer, rate, self.ratios, self.trial.facts.staleness_of_update(number))


def check_optimizer_construction(trial: OptimizerTrial) -> None:
    """`build` returns an optimizer that has each parameter in one group, also where one kind of parameters is missing.

    `step()` needs no closure: gradients of a window are there when it is called.
    """
    every = trial.parameters()
    for groups in (
        every,
        ParameterGroups(decayed=every.decayed, undecayed=[]),
        ParameterGroups(decayed=[], undecayed=every.undecayed),
    ):
        trial.build(groups, trial.options)


def check_every_parameter(trial: OptimizerTrial) -> None:
    """A step moves every parameter that has a gradient, in place, and leaves alone those that have none."""
    import torch

    stage = trial.stage()
    for without, remedy in (
        ((), "go over all of groups.decayed and groups.undecayed, and write to the parameters themselves"),
        ((0,), "pass over parameters whose grad is None: a step skips what a micro-batch has not reached"),
    ):
        before = stage.values()
        stage.step([len(without)], without=without)
        still = [index for index, value in enumerate(stage.values()) if torch.equal(value, before[index])]
        wrong = sorted(set(still) ^ set(without))
        if wrong:
            count, of = len(wrong), len(before)
            found = f"a step left {count} of {of} parameters where they were"
            if without:
                found = f"a step moved a parameter without a gradient, or left others ({count} of {of})"
            raise BrokenPromise("every parameter", found, remedy)


def check_learning_rate(trial: OptimizerTrial) -> None:
    """Steps follow the "lr" of each group, which is set before every step: 0 moves nothing, and a new rate counts at once."""
    remedy = 'read group["lr"] in step(); options.lr is the base rate, before warm-up and schedule'
    _expect_rates_of_options(trial)
    still = trial.stage()
    before = still.values()
    still.step([0], lambda _: 0.0)
    if not all_equal(before, still.values()):
        raise BrokenPromise("learning rate", "the first step at learning rate 0 moved parameters", remedy)
    one, other = trial.stage(), trial.stage()
    one.step(range(_STEPS))
    other.step(range(_STEPS), lambda number: trial.base * (0.5 if number == _STEPS - 1 else 1.0))
    if all_equal(one.values(), other.values()):
        raise BrokenPromise("learning rate", "half the learning rate at a later step changed nothing", remedy)


def _expect_rates_of_options(trial: OptimizerTrial) -> None:
    """Compare the rates that groups are built with for two values of `options.lr`: the executor keeps their ratios to it."""
    stage = trial.stage()
    if not trial.options.lr or all(ratio == 1 for ratio in stage.ratios):
        return
    try:
        half = evolve(trial.options, lr=trial.options.lr / 2)
    except ValueError:  # a validator's
        return
    rates, others = (
        [group["lr"] for group in one.stage().optimizer.param_groups] for one in (trial, evolve(trial, options=half))
    )
    if rates == others:
        listed = " and ".join(f"{rate:g}" for rate in dict.fromkeys(map(float, rates)))
        found = f"its groups are built with the rate {listed}, whatever options.lr is, so that options.lr has no effect"
        raise BrokenPromise("learning rate", found, "build the groups with lr=options.lr, or multiples of it")


def check_descends(trial: OptimizerTrial) -> None:
    """Steps go down the gradient: where it is constant, the parameters move against it."""
    import torch

    stage = trial.stage()
    before = stage.values()
    generator, gradients = torch.Generator().manual_seed(trial.seed + 1), []
    for value in before:
        drawn = torch.randn(value.shape, generator=generator)
        # Across the parameters, so that weight decay neither adds to the steps nor takes from them.
        gradients.append(drawn - value * (drawn * value).sum() / value.square().sum())
    for number in range(_STEPS):
        for parameter, gradient in zip(stage.parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        stage.set(_RATE, number)
        stage.optimizer.step()
    steps = [after - value for after, value in zip(stage.values(), before, strict=True)]
    along = sum(float((step * gradient).sum()) for step, gradient in zip(steps, gradients, strict=True))
    lengths = [math.hypot(*(float(one.norm()) for one in many)) for many in (steps, gradients)]
    if along > _ACROSS * math.prod(lengths):
        found = f"{_STEPS} steps of one gradient moved the parameters along it, so a loss would rise"
        raise BrokenPromise(
            "descends", found, "subtract the step: parameter.sub_(lr * direction); leave out maximize=True"
        )


def check_same_steps(trial: OptimizerTrial) -> None:
    """The same parameters and gradients give the same bits, whatever other optimizers do and generators stand at."""
    remedy = "keep all state in self.state, draw no random numbers, and share nothing between optimizers"
    stages = []
    for seed in (1, 2):
        with seeded(seed):
            stages.append(trial.stage())
            stages[-1].step(range(_STEPS))
    if not all_equal(stages[0].values(), stages[1].values()):
        raise BrokenPromise("repeatable", "two stages with the same gradients came to other parameters", remedy)
    one, other = trial.stage(), trial.stage()
    for number in range(_STEPS):
        one.step([number])
        other.step([2 * _STEPS + number])
    if not all_equal(one.values(), stages[0].values()):
        found = "the steps of another stage's optimizer, in between, changed the parameters"
        raise BrokenPromise("repeatable", found, remedy)


def check_optimizer_state_dict(trial: OptimizerTrial) -> None:
    """What `state_dict` returns, loaded into a new optimizer, is the same state, and continues the run to the bit."""
    stage = trial.stage()
    stage.step(range(_STEPS))
    saved = deepcopy(stage.optimizer.state_dict())
    resumed = _resumed(stage)
    resumed.optimizer.load_state_dict(deepcopy(saved))
    again = resumed.optimizer.state_dict()
    if not _same(saved, again):
        found = "what load_state_dict has read, state_dict does not return"
        raise BrokenPromise("state dictionary", found, "leave both to torch.optim.Optimizer")
    _expect_continued("state dictionary", stage, resumed)


def check_checkpoint(trial: OptimizerTrial) -> None:
    """A checkpoint, which holds `state` of each parameter and the values of groups, continues the run to the bit."""
    stage = trial.stage()
    stage.step(range(_STEPS))
    resumed = _through_checkpoint(stage)
    _expect_continued("checkpoint", stage, resumed)


def _through_checkpoint(stage: _Stage) -> _Stage:
    """Return a stage that continues from what a checkpoint of this one would hold."""
    resumed = _resumed(stage)
    _expect_storable(stage)
    for parameter, own in zip(stage.parameters, resumed.parameters, strict=True):
        if parameter in stage.optimizer.state:
            resumed.optimizer.state[own] = {
                key: _read(value) for key, value in stage.optimizer.state[parameter].items()
            }
    for group, values in zip(resumed.optimizer.param_groups, stage.optimizer.param_groups, strict=True):
        group |= {key: _read(value) for key, value in values.items() if key != "params"}
    return resumed


def check_evaluated_weights(trial: OptimizerTrial) -> None:
    """Where the optimizer has `evaluated_weights`, it returns finite weights like the parameter, and changes nothing.

    They are the same after a checkpoint, since `evaluate` and a resumed run have nothing else.
    """
    remedy = "return a tensor that is made of the parameter and of self.state.get(parameter), and write to neither"
    stage = trial.stage()
    if not hasattr(stage.optimizer, "evaluated_weights"):
        return
    first = stage.evaluated_weights()
    stage.step(range(_STEPS))
    before, state = stage.values(), _without_empty(stage.optimizer)
    generators, weights = states(), stage.evaluated_weights()
    found = next(filter(None, map(evaluated_weights_fault, stage.parameters * 2, [*first, *weights])), "")
    if not found and not all(bool(one.isfinite().all()) for one in [*first, *weights]):
        found = "its evaluated_weights returns values that are not finite"
    elif not found and not all_equal(before, stage.values()):
        found = "its evaluated_weights wrote to parameters"
    elif not found and (not _same(state, _without_empty(stage.optimizer)) or moved_since(generators)):
        found = "its evaluated_weights changed the optimizer's state, or drew random numbers"
    elif not found and not all_equal(weights, _through_checkpoint(stage).evaluated_weights()):
        found = "after a checkpoint it returns other weights"
    if found:
        raise BrokenPromise("evaluated weights", found, remedy)


def check_predicted_weights(trial: OptimizerTrial) -> None:
    """Where the optimizer has `predicted_weights`, it returns finite values like parameters, in memory of their own, and changes nothing.

    They are the same at every call and after a checkpoint, since each process predicts for itself. At a delay of 0, they are the parameters.
    """
    _expect_weights_of_delay("predicted weights", PREDICTED, trial)


def check_earlier_weights(trial: OptimizerTrial) -> None:
    """Where the optimizer has `earlier_weights`, it returns finite values like parameters, in memory of their own, and changes nothing.

    They are the same at every call and after a checkpoint. At a delay of 0, they are the parameters.
    """
    _expect_weights_of_delay("earlier weights", EARLIER, trial)


def _expect_weights_of_delay(promise: str, method: str, trial: OptimizerTrial) -> None:
    stage = trial.stage()
    if not hasattr(stage.optimizer, method):
        return
    remedy = "return a list of (parameter, new tensor), made of parameters, groups and self.state.get(parameter); write to none"
    found = _fault_of_weights(stage, method)  # before the first step
    stage.step(range(_STEPS))
    found = found or _fault_of_weights(stage, method)
    if not found:
        resumed = _through_checkpoint(stage)
        values, again = ([one for _, one in each.weights_of_delay(method, 2)] for each in (stage, resumed))
        if not all_equal(values, again):
            found = f"its {method} returns other values after a checkpoint"
    if found:
        raise BrokenPromise(promise, found, remedy)


def _fault_of_weights(stage: _Stage, method: str) -> str:
    """Return what is wrong with what a method returns in a stage as it is; "" where nothing is."""
    before, state, generators = stage.values(), _without_empty(stage.optimizer), states()
    found = next(filter(None, (_fault_at(stage, method, delay) for delay in (1, 3))), "")
    undelayed = stage.weights_of_delay(method, 0) if not found else ()
    if any(one.shape != own.shape or (one != own).any() for own, one in undelayed):
        found = "moves parameters at a delay of 0"
    elif not found and not all_equal(before, stage.values()):
        found = "wrote to parameters"
    elif not found and (not _same(state, _without_empty(stage.optimizer)) or moved_since(generators)):
        found = "changed the optimizer's state, or drew random numbers"
    return found and f"its {method} {found}"


def _fault_at(stage: _Stage, method: str, delay: int) -> str:
    """Return what is wrong with two answers for one delay, as the end of a sentence."""
    pairs, again = stage.weights_of_delay(method, delay), stage.weights_of_delay(method, delay)
    faults = (weights_of_delay_fault(method, stage.parameters, one) for one in (pairs, again))
    if fault := next(filter(None, faults), ""):
        return fault.removeprefix(f"its {method} ")
    if not all(bool(one.isfinite().all()) for _, one in pairs):
        return "returns values that are not finite"
    same = all_equal([one for _, one in pairs], [one for _, one in again])
    return "" if same else "returns other values at a second call"


def _without_empty(optimizer: torch.optim.Optimizer) -> Any:
    """Return a copy of the state; asking for the state of a parameter that has none makes an empty one."""
    held = deepcopy(optimizer.state_dict())
    return {**held, "state": {key: value for key, value in held["state"].items() if value}}


def _expect_storable(stage: _Stage) -> None:
    import torch

    remedy = "keep state of parameters in self.state[parameter]: tensors, numbers, texts and lists of them"
    own = set(map(id, stage.parameters))
    if any(id(key) not in own for key in stage.optimizer.state):
        raise BrokenPromise("checkpoint", "it keeps state of something else than its parameters", remedy)
    states = [*stage.optimizer.state.values(), *({**group, "params": None} for group in stage.optimizer.param_groups)]
    for state in states:
        for key, value in state.items():
            try:
                value if isinstance(value, torch.Tensor) else json.dumps(value)
            except (TypeError, ValueError):
                found = f"its {key!r} is {type(value).__name__}, which a checkpoint cannot hold"
                raise BrokenPromise("checkpoint", found, remedy) from None


def _read(value: Any) -> Any:
    """Return a value as it comes back from a checkpoint."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    read = json.loads(json.dumps(value))
    return tuple(read) if isinstance(read, list) else read


def _resumed(stage: _Stage) -> _Stage:
    """Return a stage with equal parameters and a new optimizer."""
    import torch

    resumed = stage.trial.stage()
    with torch.no_grad():
        for own, value in zip(resumed.parameters, stage.values(), strict=True):
            own.copy_(value)
    return resumed


def _expect_continued(promise: str, stage: _Stage, resumed: _Stage) -> None:
    others = _differing(stage.optimizer, resumed.optimizer)
    for one in (stage, resumed):
        one.step(range(_STEPS, 2 * _STEPS))
    if not all_equal(stage.values(), resumed.values()):
        named = f"; outside of `state` it has {', '.join(f'`{name}`' for name in others)}" if others else ""
        found = f"a resumed run comes to other parameters than one that was not interrupted{named}"
        raise BrokenPromise(promise, found, "keep what steers the steps in self.state[parameter], or in the groups")


def _differing(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> list[str]:
    """Return the attributes of an optimizer's own, or of one inside it, that differ from those of a new one."""
    import torch

    known = set(vars(torch.optim.SGD([torch.zeros(())], lr=1.0)))
    return [
        name for name, value in vars(one).items() if name not in known and not _same(value, getattr(other, name, None))
    ]


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one.values(), other.values(), strict=True))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


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
    promises=(
        DECLARATION,
        Promise(
            "construction", check_optimizer_construction, build="the stage's parameters", before_run="", foundation=True
        ),
        Promise(
            "every parameter",
            check_every_parameter,
            before_run="",
            first_steps="three steps, one element of each parameter",
        ),
        Promise("learning rate", check_learning_rate, before_run=""),
        Promise("descends", check_descends, before_run=""),
        Promise("repeatable", check_same_steps, before_run=""),
        Promise("state dictionary", check_optimizer_state_dict, before_run=""),
        Promise("checkpoint", check_checkpoint, before_run=""),
        Promise("evaluated weights", check_evaluated_weights, build="the shapes, in every evaluation", before_run=""),
        Promise("predicted weights", check_predicted_weights, build="the form, whenever it is asked", before_run=""),
        Promise("earlier weights", check_earlier_weights, build="the form, whenever it is asked", before_run=""),
    ),
    trial=OptimizerTrial,
    built_faults=_built_faults,
    options_last=True,
    parts=(
        Part(
            kind="optimizer",
            summary="an optimizer",
            example="sign-descent",
            suffix="optimizer",
            entry="declared:SignDescent",
            module=("optimizer.py", "The optimizer."),
            options="lr = 0.01, weight_decay = 1e-4",
            without='[optimizer]\nname = "sgd"\noptions = { lr = 0.05, weight_decay = 1e-4 }',
        ),
    ),
)
