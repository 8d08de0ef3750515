"""The warnings of a plan: each names a weakness and the key of the specification that changes it.

of a run      delay of a network without batch normalisation, a correction of a delay that no stage has, a warm-up as long as the run,
              parameters that stages share
of a plan     rates that are guessed, a profile that was taken under load, memory that is nearly full, devices that are idle, a stage that
              all others wait for
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from petra_graph.compiler.memory_and_time import Prediction
from petra_graph.compiler.profile_check import taken_under_load
from petra_graph.planning.advice.plan_assumptions import device_guesses
from petra_graph.planning.advice.run_warnings import run_warnings
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.spec.model import Spec
from petra_graph.units import plural, size_text

_IDLE = 0.7
"""Mean utilisation below which a warning says why devices wait."""
_FULL = 0.9
"""Share of a memory limit above which a warning says so."""


def warnings(prediction: Prediction, network: MeasuredNetwork) -> Iterator[str]:
    """Yield the warnings, most important first."""
    state = "set partition.device_type, or partition.profile, which `petra-graph profile` makes there"
    yield from (f"{guess}: {state}" for guess in device_guesses(prediction.inputs))
    if (profile := prediction.inputs.profile) is not None and (loaded := taken_under_load(profile)):
        yield loaded
    yield from run_warnings(network, prediction.programs)
    yield from _nearly_full(prediction)
    yield from _unused(prediction)
    yield from _unbalanced(prediction, network.spec)


def _nearly_full(prediction: Prediction) -> Iterator[str]:
    for device in prediction.inputs.devices:
        held = prediction.device_memory.get(device.name)
        most = device.memory_bytes or device.type.memory_bytes
        if held is not None and most is not None and held.total > _FULL * most:
            yield (
                f"{device.name} needs {size_text(held.total)} of {size_text(most)}, and the kernels themselves need memory on top of that: use "
                "more devices or a smaller batch, or set partition.memory lower and let the planner find a cut"
            )


def _unused(prediction: Prediction) -> Iterator[str]:
    devices = prediction.inputs.devices
    idle = [device.name for device in devices if device.name not in prediction.device_memory]
    if idle:
        yield (
            f"{len(devices)} devices for {plural(len(prediction.programs), 'stage')} leave {len(idle)} of them idle: set "
            "partition.stages higher, partition.devices lower (it counts those of one replica), or partition.replicas"
        )


def _unbalanced(prediction: Prediction, spec: Spec) -> Iterator[str]:
    """Name the device that limits the speed, or say that messages do, if devices wait for long."""
    exchange = prediction.timing.exchange
    used = {device: share + exchange[device] for device, share in prediction.timing.utilisation.items()}
    mean = sum(used.values()) / len(used)
    ahead = max(stage.depth for stage in prediction.pipeline.stages) > 1
    if mean >= _IDLE or prediction.pipeline.flushes or not ahead:
        return  # a method without forwards ahead, or one that flushes, waits by definition
    slowest = max(used, key=lambda device: used[device])
    enough = ceil(sum(used.values()) / used[slowest])
    if used[slowest] < _IDLE:
        yield (
            f"devices work {mean:.0%} of the time, because stages wait for messages, or their depths do not allow another forward: "
            'set method.schedule = "auto", which finds depths that hide the wait'
        )
    elif enough < len(used):
        listed = spec.partition.stages != "auto" and not isinstance(spec.partition.stages, int)
        remedy = f"partition.stages = {len(used)}, which cuts by cost" if listed else f"partition.devices = {enough}"
        yield f"devices work {mean:.0%} of the time, because the stages of {slowest} take longest: set {remedy}"
