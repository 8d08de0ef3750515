"""What is said of a run without a prediction, since most runs begin without a plan: whether its optimizer suits late gradients, and warnings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import ceil, inf

from petra_graph.errors import Path, Problem, shown
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.shared_across_stages import across_stages
from petra_graph.plugins.optimizer import EARLIER, LARGEST_STALENESS, PREDICTED
from petra_graph.plugins.stage_facts import steady_staleness
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import PrecisionSpec
from petra_graph.units import noun, plural

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


_LITTLE_HURT = ("muon", "soap")
"""Optimizers that were found to lose no more than a few hundredths of a nat."""
_MEASURED = (
    "a GPT of six stages, the first one 5 updates late, ended at 2.16 nats with adamw, at 1.81 with predict = true of petra-graph-studies' optimizer corrected and "
    "lr_schedule.delay_epochs = 1 of 4 epochs, and at 1.65 with muon; without delay, adamw ended at 1.74 (tools/README.md)"
)


def run_warnings(network: MeasuredNetwork, programs: Sequence[StageProgram]) -> Iterator[str]:
    """Yield the warnings, most important first."""
    spec, latest = network.spec, max(map(staleness, programs))
    for text in across_stages(network.shapes, [program.nodes for program in programs]):
        yield f"{text}: partition.untie gives each a copy of its own, so this is another model than the tied one"
    if latest > 1 and not any(node.batch_norm for node in network.shapes.values()):
        yield _delayed(network, programs, latest)
    if spec.lr_schedule.warmup_epochs >= spec.run.epochs:
        yield (
            f"the warm-up of {spec.lr_schedule.warmup_epochs:g} epochs takes all of the run's {plural(spec.run.epochs, 'epoch')}: "
            "set lr_schedule.warmup_epochs lower, or run.epochs higher"
        )


def _delayed(network: MeasuredNetwork, programs: Sequence[StageProgram], latest: float) -> str:
    """Say what the delay means for a network without batch normalisation, and which keys shorten it to one update."""
    k, count, depth = programs[0].accumulation, len(programs), max(program.depth for program in programs)
    fewer = int(1 + k * (count - 1) / (depth - 1))
    # "auto" may have as much delay as "1f1b", or more, which `plan_warnings` finds out.
    keys = ['method.schedule = "1f1b" (half of it) or "auto"'] if network.checked.schedule == "lockstep" else []
    keys += [f"partition.stages = {fewer}"] if 1 < fewer < count else []
    keys += [f"method.accumulation = {depth - 1} (with fewer updates an epoch)"]
    plugin = network.checked.optimizer.plugin
    known = plugin.is_first_party and plugin.name in _LITTLE_HURT
    remedy = f"{plugin.name} suffers little from it" if known else f'{_MEASURED}: set optimizer.name = "muon"'
    return (
        f"gradients reach the first stage {latest:.3g} updates late, and no node has batch normalisation: delay hurts such networks most; "
        f"{remedy}. To reduce the delay: {'; '.join(keys)}"
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
