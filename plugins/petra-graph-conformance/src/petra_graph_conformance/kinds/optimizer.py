"""An optimizer: it steps each parameter of a stage once, at the rate that it is given, and continues a checkpoint to the bit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, nn

from petra_graph.kinds.generators import moved_since, seeded, states
from petra_graph.kinds.optimizer import (
    EARLIER,
    OPTIMIZER,
    PREDICTED,
    ParameterGroups,
    asks_for_delay,
    evaluated_weights_fault,
    rate_ratios,
    set_rates,
    weights_of_delay_fault,
)
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph_conformance.broken_promise import BrokenPromise, all_equal
from petra_graph_conformance.declaration_promises import DECLARATION
from petra_graph_conformance.plugin_trial import StageTrial
from petra_graph_conformance.promise import KindChecks, Promise

_DECAYED, _UNDECAYED = ((4, 3), (2, 3, 3, 3)), ((4,), (2,))


_STEPS = 4
"""Before something changes, and after it."""


_RATE = 0.01
"""The rate of a trial, where the options' own rate is 0."""


_ACROSS = 0.01
"""The cosine of steps and gradient below which steps go neither up nor down."""


Rate = Callable[[int], float]


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
        return asks_for_delay(self.plugin, self.options)

    @property
    def base(self) -> float:
        """The base learning rate."""
        return float(self.options.lr) or _RATE

    def parameters(self) -> ParameterGroups:
        """Return new parameters, the same at every call."""
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
        with torch.no_grad():
            found = [self.optimizer.evaluated_weights(parameter) for parameter in self.parameters]  # type: ignore[attr-defined]
        return [one.detach().clone() if isinstance(one, torch.Tensor) else one for one in found]

    def weights_of_delay(self, method: str, delay: int) -> Any:
        """Return what the optimizer's `PREDICTED` or `EARLIER` returns."""
        with torch.no_grad():
            return getattr(self.optimizer, method)(delay)

    def step(self, steps: Iterable[int], rate: Rate | None = None, without: Collection[int] = ()) -> None:
        """Take steps as the executor does; parameters `without` have no gradient."""
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
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    read = json.loads(json.dumps(value))
    return tuple(read) if isinstance(read, list) else read


def _resumed(stage: _Stage) -> _Stage:
    """Return a stage with equal parameters and a new optimizer."""
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
    known = set(vars(torch.optim.SGD([torch.zeros(())], lr=1.0)))
    return [
        name for name, value in vars(one).items() if name not in known and not _same(value, getattr(other, name, None))
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one.values(), other.values(), strict=True))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


OPTIMIZER_CHECKS = KindChecks(
    kind=OPTIMIZER,
    promises=(
        DECLARATION,
        Promise("construction", check_optimizer_construction, before_run=True, foundation=True),
        Promise("every parameter", check_every_parameter, before_run=True),
        Promise("learning rate", check_learning_rate, before_run=True),
        Promise("descends", check_descends, before_run=True),
        Promise("repeatable", check_same_steps, before_run=True),
        Promise("state dictionary", check_optimizer_state_dict, before_run=True),
        Promise("checkpoint", check_checkpoint, before_run=True),
        Promise("evaluated weights", check_evaluated_weights, before_run=True),
        Promise("predicted weights", check_predicted_weights, before_run=True),
        Promise("earlier weights", check_earlier_weights, before_run=True),
    ),
    trial=OptimizerTrial,
)
