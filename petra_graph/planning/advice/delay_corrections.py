"""What an optimizer does about the delay of its stage, compared with the delays and the backwards that the stages have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import torch
from attrs import evolve, fields

from petra_graph.errors import Path, Problem, shown
from petra_graph.kinds.correction import DELAY, Corrected
from petra_graph.kinds.optimizer import EARLIER, LARGEST_STALENESS, PREDICTED, ParameterGroups
from petra_graph.kinds.stage_facts import DELAYED, steady_staleness
from petra_graph.planning.check.checked_spec import ConfiguredPlugin
from petra_graph.planning.network.measure_network import MeasuredNetwork
from petra_graph.program.stage_program import StageProgram
from petra_graph.units import noun

_BY_STAGE = "beta1_by_stage"
"""The option of `nadam` that follows the delay."""

_CURRENT = ("petra", "dsp")
"""Methods whose backwards use the current parameters, if no other key says otherwise."""


_ASKED = {
    PREDICTED: ("prediction", "predicts the parameters that a backward will find"),
    EARLIER: ("estimate", "estimates the parameters that a forward had"),
}
"""By methods that the executor asks for other parameters than the stage's own: their answer, and what an optimizer with them does."""


def correction_problems(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[Problem]:
    """Yield the problems of an optimizer with other parameters for backwards that use stored ones, or of too much delay for its steps.

    A delayed stage that keeps graphs is among those with stored parameters: a kept graph has the forward's.
    """
    late = _delayed(programs)
    stored = [one.index for one in late if any(segment.backward == "stored" for segment in one.segments)]
    optimizer = network.tried_optimizer
    for method, (_, does) in _ASKED.items() if stored else ():
        if hasattr(optimizer, method):
            key = _key(network.optimizer, method)
            yield Problem(
                message=f"{network.optimizer.plugin} {does}, and under method {shown(network.method.name)} "
                f"the backward of stage {stored[0]} uses those of its forward",
                hint=f"{_off(key)}, or {_with_current_parameters(network)}",
                path=key,
            )
    yield from _too_late(network, programs, getattr(optimizer, LARGEST_STALENESS, inf))


def _with_current_parameters(network: MeasuredNetwork) -> str:
    """Return the key under which backwards use no stored parameters."""
    if network.method.name not in _CURRENT:
        return f"method.name = {' or '.join(map(shown, _CURRENT))}, whose backwards use the current parameters"
    kept_graphs_store = network.method.backward == "current"
    return "method.allow_stored = false" if kept_graphs_store else 'method.backward = "current"'


def _too_late(network: MeasuredNetwork, programs: Sequence[StageProgram], most: float) -> Iterator[Problem]:
    """Yield the problem of stages that are later than an optimizer's steps allow."""
    latest = max(programs, key=_staleness)
    if _staleness(latest) <= most:
        return
    key = _key(network.optimizer, LARGEST_STALENESS)
    which = f"{network.optimizer.plugin}{f' with {_dotted(key)}' if key[: len(DELAY)] == DELAY else ''}"
    yield Problem(
        message=f"{which} is for delays of at most {_updates(most)}, and stage {latest.index} has one of {_updates(_staleness(latest))}",
        hint=f"set method.max_staleness = {shown(float(most))} instead of method.accumulation, or method.schedule to one with less delay"
        f", or {_off(key)}",
        path=key,
    )


def _updates(delay: float) -> str:
    return f"{delay:.3g} {noun(delay, 'update')}"


def corrections_without_effect(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Name what corrects a delay, where no stage has one."""
    if _delayed(programs):
        return
    optimizer, built = network.optimizer, network.tried_optimizer
    corrections = ["[optimizer.delay]"] if hasattr(built, "wrapped") else []
    if network.correction is None:
        corrections += [
            f"the {noun} of {optimizer.plugin}" for method, (noun, _) in _ASKED.items() if hasattr(built, method)
        ]
    if optimizer.plugin.is_first_party and getattr(optimizer.options, _BY_STAGE, False):
        corrections.append(f"optimizer.options.{_BY_STAGE} = true")
    yield from (f"{correction} changes nothing: no stage has a delay" for correction in corrections)


def _delayed(programs: Sequence[StageProgram]) -> list[StageProgram]:
    return [program for program in programs if _staleness(program)]


def _staleness(program: StageProgram) -> float:
    return steady_staleness(program.depth, program.accumulation, program.flush)


def _built(optimizer: ConfiguredPlugin) -> torch.optim.Optimizer:
    groups = ParameterGroups(decayed=[torch.nn.Parameter(torch.zeros(1))], undecayed=[])
    built: torch.optim.Optimizer = optimizer.build(groups, stage=DELAYED)
    return built


def _key(optimizer: ConfiguredPlugin, attribute: str) -> Path:
    """Return the key without which an optimizer does not have an attribute: one of its correction, or its name."""
    code = optimizer.plugin.code
    for option in fields(type(code.options)) if isinstance(code, Corrected) else ():
        without = evolve(code, options=evolve(code.options, **{option.name: option.default}))
        if not hasattr(_built(evolve(optimizer, plugin=evolve(optimizer.plugin, code=without))), attribute):
            return (*DELAY, option.name)
    return ("optimizer", "name")


def _off(key: Path) -> str:
    return f"leave out {_dotted(key)}" if key[: len(DELAY)] == DELAY else "choose another optimizer"


def _dotted(key: Path) -> str:
    return ".".join(map(str, key))
