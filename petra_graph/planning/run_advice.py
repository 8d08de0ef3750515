"""What is said of a run without a prediction, since most runs begin without a plan: whether its optimizer suits late gradients, and warnings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import ceil, inf

from petra_graph.errors import Path, Problem, shown
from petra_graph.planning.check_spec import CheckedSpec
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.shared_across_stages import across_stages
from petra_graph.plugins.optimizer import EARLIER, LARGEST_STALENESS, PREDICTED, asks_for_delay
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import PrecisionSpec
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

    A delayed stage that keeps graphs is among them: its forward was recorded over the stage's own parameters.
    """
    checked, optimizer = network.checked, network.checked.tried_optimizer
    late = [program for program in programs if program.staleness]
    stored = [
        one.index
        for one in late
        if any(segment.keeps == "graph" or segment.backward == "stored" for segment in one.segments)
    ]
    for method, does in _DOES.items() if stored else ():
        if hasattr(optimizer, method):
            yield Problem(
                message=f"{checked.optimizer.plugin} {does}, and under method {shown(checked.method.name)} "
                f"the backward of stage {stored[0]} is bound to those of its forward",
                hint=f"{_OTHERWISE}, or {_with_current_parameters(checked)}",
                path=_NAME,
            )

    most, latest = getattr(optimizer, LARGEST_STALENESS, inf), max(programs, key=lambda program: program.staleness)
    if latest.staleness > most:
        yield Problem(
            message=f"{checked.optimizer.plugin} is for delays of at most {_updates(most)}, and stage {latest.index} has one of {_updates(latest.staleness)}",
            hint=f"set method.accumulation = {ceil((latest.depth - 1) / most)}, or method.schedule to one with less delay"
            f", or {_OTHERWISE}",
            path=_NAME,
        )


def _with_current_parameters(checked: CheckedSpec) -> str:
    """Return the key under which backwards use no stored parameters."""
    if checked.method.name not in _CURRENT:
        return f"method.name = {' or '.join(map(shown, _CURRENT))}, whose backwards use the current parameters"
    return "method.allow_stored = false"


def _updates(delay: float) -> str:
    return f"{delay:.3g} {noun(delay, 'update')}"


_MUCH = 2
"""Updates of delay above which a run is told what helps."""
_GPT = "a small GPT, five updates late, ended at {0}; without delay, at {1}"
_MEASURED = {
    **dict.fromkeys(("adam", "adamw", "nadam"), _GPT.format("2.16 nats with AdamW", "1.74")),
    **dict.fromkeys(("muon", "soap"), _GPT.format("1.65 nats with Muon", "1.62")),
    **dict.fromkeys(
        ("sgd", "lars"), "a RevNet, nine updates late, ended at 81.94 % with SGD; without delay, at 82.92 %"
    ),
}
"""What delay cost in a study with an optimizer of the same kind (README)."""


def run_warnings(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Yield the warnings, most important first."""
    latest = max(programs, key=lambda program: program.staleness)
    for text in across_stages(network.shapes, [program.nodes for program in programs]):
        yield f"{text}: partition.untie gives each a copy of its own, so this is another model than the tied one"
    optimizer = network.checked.optimizer
    if latest.staleness > _MUCH and not asks_for_delay(optimizer.plugin, optimizer.options):
        name = optimizer.plugin.name
        cost = f" ({_MEASURED[name]})" if name in _MEASURED else ""
        other = 'method.schedule = "1f1b" halves the delay, ' if network.checked.schedule == "lockstep" else ""
        yield (
            f"gradients reach stage {latest.index} {latest.staleness:.3g} updates late, which can cost accuracy{cost}: "
            f"{other}method.accumulation = {ceil((latest.depth - 1) / _MUCH)} makes it {_MUCH} updates or less"
        )


def products_note(precision: PrecisionSpec, kinds: Collection[str]) -> Iterator[str]:
    """Yield which arithmetic convolutions and matrix products have, if there is a choice: in float32 on a GPU.

    Args:
        kinds: of the devices, "cuda" or "cpu".
    """
    if "cuda" not in kinds:
        return
    match precision.products:
        case "tf32":
            yield (
                'convolutions and matrix products in float32 are computed in TF32 (precision.fp32_precision = "ieee" keeps all bits of their '
                'factors, and is slower); precision.compute = "bfloat16" is faster'
            )
        case "ieee":
            yield (
                "convolutions and matrix products are computed in float32 without TF32, which is several times as slow as with it "
                '(precision.fp32_precision = "tf32") or in bfloat16 (precision.compute = "bfloat16")'
            )
