"""Whether an optimizer suits the delays and the backwards of the stages that it trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf

from petra_graph.errors import Path, Problem, shown
from petra_graph.kinds.optimizer import EARLIER, LARGEST_STALENESS, PREDICTED
from petra_graph.kinds.stage_facts import steady_staleness
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.program.stage_program import StageProgram
from petra_graph.units import noun

_NAME: Path = ("optimizer", "name")
_OTHERWISE = "choose another optimizer, or other options of it"
_CURRENT = ("petra", "dsp")
"""Methods whose backwards use the current parameters, if no other key says otherwise."""
_DOES = {
    PREDICTED: "predicts the parameters that a backward will find",
    EARLIER: "estimates the parameters that a forward had",
}
"""What an optimizer does that the executor asks, by this method, for other parameters than the stage's own."""


def delay_problems(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[Problem]:
    """Yield the problems of an optimizer with other parameters for backwards that use stored ones, or of too much delay for its steps.

    A delayed stage that keeps graphs is among those with stored parameters: a kept graph has the forward's.
    """
    checked, optimizer = network.checked, network.checked.tried_optimizer
    late = [program for program in programs if staleness(program)]
    stored = [one.index for one in late if any(segment.backward == "stored" for segment in one.segments)]
    for method, does in _DOES.items() if stored else ():
        if hasattr(optimizer, method):
            yield Problem(
                message=f"{checked.optimizer.plugin} {does}, and under method {shown(checked.method.name)} "
                f"the backward of stage {stored[0]} uses those of its forward",
                hint=f"{_OTHERWISE}, or {_with_current_parameters(checked)}",
                path=_NAME,
            )

    most, latest = getattr(optimizer, LARGEST_STALENESS, inf), max(programs, key=staleness)
    if staleness(latest) > most:
        yield Problem(
            message=f"{checked.optimizer.plugin} is for delays of at most {_updates(most)}, and stage {latest.index} has one of {_updates(staleness(latest))}",
            hint=f"set method.accumulation = {ceil((latest.depth - 1) / most)}, or method.schedule to one with less delay"
            f", or {_OTHERWISE}",
            path=_NAME,
        )


def staleness(program: StageProgram) -> float:
    """Return how late a stage's gradients are, in updates while the pipeline is full."""
    return steady_staleness(program.depth, program.accumulation, program.flush)


def _with_current_parameters(checked: CheckedSpec) -> str:
    """Return the key under which backwards use no stored parameters."""
    if checked.method.name not in _CURRENT:
        return f"method.name = {' or '.join(map(shown, _CURRENT))}, whose backwards use the current parameters"
    return "method.allow_stored = false"


def _updates(delay: float) -> str:
    return f"{delay:.3g} {noun(delay, 'update')}"
