"""An optimizer steps each parameter of a stage once, at the rate that it is given, and goes on from a checkpoint to the bit.

The executor sets every group's "lr" before each step, to the multiple of the rate that the group was built with, calls `step()`
without arguments, and drops the gradients. A checkpoint holds the optimizer's `state` of each parameter and the values of its groups,
and nothing else that it remembers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import torch
from attrs import evolve, frozen
from torch import Tensor, nn

from petra_graph.executor.update import rate_ratios, set_rates
from petra_graph.registry.building import build_plugin
from petra_graph.registry.contracts import OPTIMIZERS, Declaration, ParameterGroups
from petra_graph.registry.registry import Plugin
from petra_graph.testing.any_trial import PluginTrial, as_plugin, read_given
from petra_graph.testing.broken_promise import BrokenPromise
from petra_graph.testing.generators import seeded

_DECAYED, _UNDECAYED = ((4, 3), (2, 3, 3, 3)), ((4,), (2,))
_STEPS = 4
"""Before something changes, and after it."""
_RATE = 0.01
"""Where the options' own rate is 0."""
Rate = Callable[[int], float]


@frozen(kw_only=True)
class OptimizerTrial(PluginTrial):
    """An optimizer with options.

    Attributes:
        plugin: the optimizer.
        options: an instance of its own options class.
        decayed: shapes of the parameters to which weight decay applies.
        undecayed: shapes of the others.
        seed: parameters and gradients follow from it.
    """

    kind: ClassVar[str] = "optimizer"
    group: ClassVar[str] = OPTIMIZERS
    decayed: Sequence[Sequence[int]] = _DECAYED
    undecayed: Sequence[Sequence[int]] = _UNDECAYED
    seed: int = 0

    @staticmethod
    def of(
        optimizer: Declaration | Plugin, options: Mapping[str, Any] | object = None, **settings: Any
    ) -> OptimizerTrial:
        """Make a trial of a declaration, with its `options` table; settings are attributes of the same name."""
        plugin = as_plugin(OPTIMIZERS, optimizer)
        return OptimizerTrial(plugin=plugin, options=read_given(plugin, options), **settings)

    @property
    def base(self) -> float:
        """The base learning rate."""
        return float(self.options.lr) or _RATE

    def parameters(self) -> ParameterGroups:
        """Return new parameters, the same at every call."""
        generator = torch.Generator().manual_seed(self.seed)

        def drawn(shapes: Sequence[Sequence[int]]) -> list[nn.Parameter]:
            return [nn.Parameter(torch.randn(tuple(shape), generator=generator)) for shape in shapes]

        return ParameterGroups(decayed=drawn(self.decayed), undecayed=drawn(self.undecayed))

    def stage(self) -> _Stage:
        """Return a stage's parameters with a new optimizer of them."""
        groups = self.parameters()
        optimizer = self.build_raw(groups, self.options)
        return _Stage(groups=groups, optimizer=optimizer, ratios=rate_ratios(optimizer, self.options.lr), trial=self)


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

    def step(self, steps: Iterable[int], rate: Rate | None = None, without: Collection[int] = ()) -> None:
        """Take steps as the executor does; parameters `without` have no gradient."""
        for number in steps:
            generator = torch.Generator().manual_seed(self.trial.seed + 1 + number)
            for index, parameter in enumerate(self.parameters):
                gradient = torch.randn(parameter.shape, generator=generator)
                parameter.grad = None if index in without else gradient
            set_rates(self.optimizer, self.trial.base if rate is None else rate(number), self.ratios)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


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
        build_plugin(trial.plugin, groups, trial.options)


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
    if not _equal(before, still.values()):
        raise BrokenPromise("learning rate", "the first step at learning rate 0 moved parameters", remedy)
    one, other = trial.stage(), trial.stage()
    one.step(range(_STEPS))
    other.step(range(_STEPS), lambda number: trial.base * (0.5 if number == _STEPS - 1 else 1.0))
    if _equal(one.values(), other.values()):
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


def check_same_steps(trial: OptimizerTrial) -> None:
    """The same parameters and gradients give the same bits, whatever other optimizers do and generators stand at."""
    remedy = "keep all state in self.state, draw no random numbers, and share nothing between optimizers"
    stages = []
    for seed in (1, 2):
        with seeded(seed):
            stages.append(trial.stage())
            stages[-1].step(range(_STEPS))
    if not _equal(stages[0].values(), stages[1].values()):
        raise BrokenPromise("repeatable", "two stages with the same gradients came to other parameters", remedy)
    one, other = trial.stage(), trial.stage()
    for number in range(_STEPS):
        one.step([number])
        other.step([2 * _STEPS + number])
    if not _equal(one.values(), stages[0].values()):
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
    resumed = _resumed(stage)
    _expect_storable(stage)
    for parameter, own in zip(stage.parameters, resumed.parameters, strict=True):
        if parameter in stage.optimizer.state:
            resumed.optimizer.state[own] = {
                key: _read(value) for key, value in stage.optimizer.state[parameter].items()
            }
    for group, values in zip(resumed.optimizer.param_groups, stage.optimizer.param_groups, strict=True):
        group |= {key: _read(value) for key, value in values.items() if key != "params"}
    _expect_continued("checkpoint", stage, resumed)


def _expect_storable(stage: _Stage) -> None:
    remedy = "keep state of parameters in self.state[parameter]: tensors, numbers, texts and lists of them"
    own = set(map(id, stage.parameters))
    if any(id(key) not in own for key in stage.optimizer.state):
        raise BrokenPromise("checkpoint", "it keeps state of something else than its parameters", remedy)
    states = [*stage.optimizer.state.values(), *({**group, "params": None} for group in stage.optimizer.param_groups)]
    for state in states:
        for key, value in state.items():
            try:
                value if isinstance(value, Tensor) else json.dumps(value)
            except (TypeError, ValueError):
                found = f"its {key!r} is {type(value).__name__}, which a checkpoint cannot hold"
                raise BrokenPromise("checkpoint", found, remedy) from None


def _read(value: Any) -> Any:
    """Return a value as it comes back from a checkpoint."""
    if isinstance(value, Tensor):
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
    if not _equal(stage.values(), resumed.values()):
        named = f"; outside of `state` it has {', '.join(f'`{name}`' for name in others)}" if others else ""
        found = f"a run that goes on comes to other parameters than one that was not interrupted{named}"
        raise BrokenPromise(promise, found, "keep what steers the steps in self.state[parameter], or in the groups")


def _differing(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> list[str]:
    """Return the attributes of an optimizer's own, or of one inside it, that differ from those of a new one."""
    known = set(vars(torch.optim.SGD([torch.zeros(())], lr=1.0)))
    return [
        name for name, value in vars(one).items() if name not in known and not _same(value, getattr(other, name, None))
    ]


def _equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one.values(), other.values(), strict=True))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)
