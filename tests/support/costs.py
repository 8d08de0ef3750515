"""Cost tables of the test pipelines, and a run's stages measured."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import attrs
import torch

from petra_graph.catalog.losses_and_metrics import CrossEntropy
from petra_graph.compiler.lower import MessageTypes
from petra_graph.compiler.memory import MemoryModel, StageBytes
from petra_graph.measure.costs import Conditions, measure_costs
from petra_graph.measure.nodes import Memo
from petra_graph.plugins.data_set import DataFacts
from petra_graph.program.channels import MessageLayout, StreamType, TensorLayout, encoded_dtype
from petra_graph.program.node_costs import CostTable
from petra_graph.program.schedule import Policy
from petra_graph.program.stage_program import Partition, Stage
from petra_graph.runtime.loop import Scheduler
from petra_graph.spec.model import NodeSpec, PrecisionSpec, StoredDtype
from tests.support.pipelines import Compute, Pipeline, batches, built_graph, configured, pipeline
from tools.bench.stage_peaks import StagePeaks


def conditions(
    shape: tuple[int, ...],
    *,
    batch: int = 4,
    optimizer: str = "sgd",
    options: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Conditions:
    loss: Any = CrossEntropy()
    usual = Conditions(
        batch=batch,
        facts=DataFacts(shape=shape, dtype="float32"),
        precision=PrecisionSpec(),
        loss=loss,
        optimizer=configured(optimizer, dict(options or {})),
    )
    return attrs.evolve(usual, **changes)


def encoded_bytes(shape: tuple[int, ...], stored: StoredDtype, own: str) -> int:
    """Bytes of an encoded tensor of type `own` as messages are planned, its scale included."""
    tensor = TensorLayout(shape=shape, dtype=own, stored=encoded_dtype(stored, own), channels_last=False)
    return MessageLayout(tensors=(tensor,), samples=1).payload_bytes


def messages_of(table: CostTable) -> MessageTypes:
    """Messages of the sizes that a table has."""
    size = 4 * table.micro_batch
    streams = {
        name: tuple(StreamType((count // size,), "float32") for count in node.output_bytes)
        for name, node in table.nodes.items()
    }
    return MessageTypes(streams=streams, batch=table.micro_batch)


def costs(nodes: Sequence[NodeSpec], shape: tuple[int, ...], **changes: Any) -> CostTable:
    return measure_costs(built_graph(nodes), conditions(shape, **changes))


_TABLES = Memo[CostTable]()
"""Of the pipelines, each measured once."""


def predicted_and_measured(
    nodes: Sequence[NodeSpec],
    shape: tuple[int, ...],
    *,
    devices: Sequence[str] = (),
    policy: Policy = "arrival",
    batch: int = 4,
    compute: Compute = "float32",
    optimizer: str = "sgd",
    **settings: Any,
) -> tuple[list[StageBytes], list[int]]:
    """Plan a pipeline and run it, as if the CPU were devices of these names; return what each stage holds, or each of the devices."""
    built: Pipeline = pipeline(nodes, shape, batch=batch, compute=compute, optimizer=optimizer, **settings)
    programs, k = built.programs, built.programs[0].accumulation
    options = {key: value for key, value in settings.items() if key not in signature(pipeline).parameters}
    precision = PrecisionSpec(compute=compute)
    under = conditions(shape, batch=batch, optimizer=optimizer, options=options, precision=precision)
    of_costs = (nodes, shape, batch, optimizer, options, precision)
    table = _TABLES.get(of_costs, lambda: measure_costs(built.network.graph, under))
    table = table.counted_once(built.network.shared_in_stages([program.nodes for program in programs]))
    stored = any(segment.backward == "stored" for program in programs for segment in program.segments)
    # Older versions come behind the first update.
    count = max(program.depth for program in programs) * (2 if stored else 1) + 3 * k
    data = batches(shape, count, batch, dtype=torch.float32)
    model = MemoryModel(costs=table, policy=policy, micro_batches=count)
    if not devices:
        with StagePeaks(built.executors) as peaks:
            Scheduler(peaks.executors, policy=policy).train(data, range(count), lambda _: None)
        return list(model.apart(programs)), list(peaks.total.values())
    stages = Partition(stages=tuple(Stage(nodes=program.nodes, device="", distance=0) for program in programs))
    names = [stage.device for stage in stages.spread_over(devices).stages]
    predicted = model.on_devices(
        [attrs.evolve(program, device=name) for program, name in zip(programs, names, strict=True)]
    )
    with StagePeaks(built.executors, dict(enumerate(names, 1))) as peaks:
        Scheduler(peaks.executors, policy=policy).train(peaks.loaded(data), range(count), lambda _: None)
    assert predicted.keys() == peaks.of_devices.keys() == set(devices)
    return [predicted[name] for name in devices], [peaks.of_devices[name] for name in devices]
