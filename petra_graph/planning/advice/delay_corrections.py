"""What an optimizer does about the delay of its stage, compared with the delays and the backwards that the stages have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from attrs import frozen

from petra_graph.errors import Path, Problem, shown
from petra_graph.kinds.optimizer import EARLIER, LARGEST_STALENESS, PREDICTED
from petra_graph.kinds.stage_facts import steady_staleness
from petra_graph.planning.network.measure_network import MeasuredNetwork
from petra_graph.program.stage_program import StageProgram
from petra_graph.units import noun

_BY_STAGE = "beta1_by_stage"
"""The option of `nadam` that follows the delay."""

_CURRENT = ("petra", "dsp")
"""Methods whose backwards use the current parameters, if no other key says otherwise."""


@frozen
class _Asked:
    """A method that the executor asks for other parameters than the stage's own, in messages."""

    name: str
    option: str
    """Of first-party optimizers, by which they have the method."""
    noun: str
    does: str
    """What an optimizer with it does."""


_ASKED = (
    _Asked(PREDICTED, "predict", "prediction", "predicts the parameters that a backward will find"),
    _Asked(EARLIER, "correct_discrepancy", "estimate", "estimates the parameters that a forward had"),
)


def correction_problems(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[Problem]:
    """Yield the problems of an optimizer with other parameters for backwards that use stored ones, or of too much delay for its steps.

    A delayed stage that keeps graphs is among those with stored parameters: a kept graph has the forward's.
    """
    late = _delayed(programs)
    stored = [one.index for one in late if any(segment.backward == "stored" for segment in one.segments)]
    optimizer = network.tried_optimizer
    for asked in _ASKED if stored else ():
        if hasattr(optimizer, asked.name):
            key = _key(network, asked)
            off = f"set {asked.option} = false" if key[-1] == asked.option else "choose another optimizer"
            yield Problem(
                message=f"{network.optimizer.plugin} {asked.does}, and under method {shown(network.method.name)} "
                f"the backward of stage {stored[0]} uses those of its forward",
                hint=f"{off}, or {_with_current_parameters(network)}",
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
    plugin, key = network.optimizer.plugin, _corrects(network)
    which = f"{plugin} with {key[-1]} = {shown(network.optimizer.options.correction)}" if key else f"{plugin}"
    yield Problem(
        message=f"{which} is for delays of at most {_updates(most)}, and stage {latest.index} has one of {_updates(_staleness(latest))}",
        hint=f"set method.max_staleness = {shown(float(most))} instead of method.accumulation, or method.schedule to one with less delay, "
        'or use the correction "spike" of sgd, adam and adamw, which is for any delay',
        path=key or ("optimizer", "name"),
    )


def _updates(delay: float) -> str:
    return f"{delay:.3g} {noun(delay, 'update')}"


def _corrects(network: MeasuredNetwork) -> Path:
    """Return the option by which a first-party optimizer corrects its steps; () where it does not."""
    own = network.optimizer.plugin.is_first_party
    corrects = own and getattr(network.optimizer.options, "correction", "none") != "none"
    return ("optimizer", "options", "correction") if corrects else ()


def corrections_without_effect(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Name the options that correct a delay, where no stage has one."""
    if _delayed(programs):
        return
    optimizer, built = network.optimizer, network.tried_optimizer
    corrections = []
    if option := _corrects(network):
        corrections.append(f"{_dotted(option)} = {shown(optimizer.options.correction)}")
    for asked in _ASKED:
        if hasattr(built, asked.name):
            key = _key(network, asked)
            own = key[-1] == asked.option
            corrections.append(f"{_dotted(key)} = true" if own else f"the {asked.noun} of {optimizer.plugin}")
    if optimizer.plugin.is_first_party and getattr(optimizer.options, _BY_STAGE, False):
        corrections.append(f"optimizer.options.{_BY_STAGE} = true")
    yield from (f"{correction} changes nothing: no stage has a delay" for correction in corrections)


def _dotted(key: Path) -> str:
    return ".".join(map(str, key))


def _delayed(programs: Sequence[StageProgram]) -> list[StageProgram]:
    return [program for program in programs if _staleness(program)]


def _staleness(program: StageProgram) -> float:
    return steady_staleness(program.depth, program.accumulation, program.flush)


def _key(network: MeasuredNetwork, asked: _Asked) -> Path:
    """Return the option by which an optimizer has a method, or its name where it always has it."""
    own = getattr(network.optimizer.options, asked.option, None) is True
    return ("optimizer", "options", asked.option) if own else ("optimizer", "name")
