"""What is said of a run without a prediction, since most runs begin without a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from petra_graph.planning.delay_problems import staleness
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.shared_across_stages import across_stages
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import PrecisionSpec
from petra_graph.units import plural

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
