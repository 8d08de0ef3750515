"""What an optimizer does about the delay of its stage, compared with the delays and the backwards that the stages have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from petra_graph.errors import Path, Problem, shown
from petra_graph.kinds.optimizer import ParameterGroups, predicts
from petra_graph.kinds.stage_facts import DELAYED
from petra_graph.planning.measure_network import MeasuredNetwork
from petra_graph.program.stage_program import StageProgram


def prediction_problems(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[Problem]:
    """Yield the problem of an optimizer that predicts the parameters of backwards which use those of the forward.

    A delayed stage that keeps graphs is among these: a kept graph has the forward's parameters.
    """
    stored = [
        program.index
        for program in _delayed(programs)
        if any(segment.backward == "stored" for segment in program.segments)
    ]
    if stored and _predicts(network):
        predict = "set predict = false" if _key(network)[-1] == "predict" else "choose another optimizer"
        yield Problem(
            message=f"{network.optimizer.plugin} predicts the parameters that a backward will find, and under method "
            f"{shown(network.method.name)} the backward of stage {stored[0]} uses those of its forward",
            hint=f'{predict}, or method.name = "petra" or "dsp", whose backwards use the current parameters',
            path=_key(network),
        )


def corrections_without_effect(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Name the options that correct a delay, where no stage has one."""
    if _delayed(programs):
        return
    optimizer = network.optimizer
    corrections = []
    if optimizer.plugin.is_first_party and getattr(optimizer.options, "correction", "none") != "none":
        corrections.append(f"optimizer.options.correction = {shown(optimizer.options.correction)}")
    if _predicts(network):
        key = ".".join(map(str, _key(network)))
        corrections.append(f"{key} = true" if key.endswith("predict") else f"the prediction of {optimizer.plugin}")
    yield from (f"{correction} changes nothing: no stage has a delay" for correction in corrections)


def _delayed(programs: Sequence[StageProgram]) -> list[StageProgram]:
    return [program for program in programs if program.depth > 1 and program.flush != "window"]


def _predicts(network: MeasuredNetwork) -> bool:
    groups = ParameterGroups(decayed=[torch.nn.Parameter(torch.zeros(1))], undecayed=[])
    return predicts(network.optimizer.build(groups, stage=DELAYED))


def _key(network: MeasuredNetwork) -> Path:
    """Return the option by which an optimizer predicts, or its name where it always does."""
    own = getattr(network.optimizer.options, "predict", None) is True
    return ("optimizer", "options", "predict") if own else ("optimizer", "name")
