"""Small pipelines for tests, built as a run builds them."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

import torch
from attrs import evolve, frozen
from torch import Tensor
from torch.nn.functional import cross_entropy

from petra_graph.blocks import Block, Streams
from petra_graph.catalog.losses_and_metrics import CrossEntropy
from petra_graph.compiler.lower import MessageTypes
from petra_graph.compiler.spec_checks import check_method
from petra_graph.executor.head import HeadResult
from petra_graph.executor.stage import StageExecutor
from petra_graph.graph.node_graph import NodeGraph, NodeInput, build_graph
from petra_graph.measure.nodes import Memo, NodeShapes, measure_shapes
from petra_graph.planning.check_spec import CheckedSpec, given_stages
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.planning.place_network import place_network, planned_devices
from petra_graph.plugins.contract import BLOCK, OPTIMIZER, Plugin
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.registry import discover
from petra_graph.program.channels import Edge, StreamType
from petra_graph.program.schedule import Policy
from petra_graph.program.stage_program import StageProgram
from petra_graph.runtime.loop import Scheduler
from petra_graph.spec.model import (
    ClipSpec,
    DataSpec,
    Dtype,
    Kind,
    MethodSpec,
    NodeSpec,
    OptimizerSpec,
    PartitionSpec,
    PrecisionSpec,
    RequestedSchedule,
    RunSpec,
    Spec,
)
from petra_graph.training.prepare import Prepared

REGISTRY = discover().only(["petra-graph"])
BLOCKS = {name: REGISTRY.resolve(BLOCK, name) for name in REGISTRY.names(BLOCK)}
CLASSES = 5
Compute = Literal["float32", "float64", "bfloat16"]
Batch = tuple[torch.Tensor, torch.Tensor]
"""Samples and targets."""


def node(
    name: str, block: str, *, kind: Kind | None = None, inputs: Sequence[str] | None = None, **options: Any
) -> NodeSpec:
    return NodeSpec(
        name=name, block=block, kind=kind, inputs=None if inputs is None else tuple(inputs), options=options
    )


CHAIN = (
    node("stem", "linear-stem", features=6),
    *(node(f"rev{index}", "rev-mlp", hidden=7, activation="tanh") for index in range(3)),
    node("head", "pool-linear", outputs=CLASSES),
)
REVNET = (
    node("stem", "conv-stem", channels=4),
    node("a0", "rev-basic"),
    node("a1", "rev-basic"),
    node("down", "down-basic", channels=6, stride=2),
    node("b0", "rev-basic"),
    node("head", "pool-linear", outputs=CLASSES),
)
SKIP = (
    node("stem", "linear-stem", features=6),
    node("rev0", "rev-mlp", hidden=7, activation="tanh"),
    node("rev1", "rev-mlp", hidden=7, activation="tanh"),
    node("join", "add", inputs=["rev1", "rev0"]),
    node("rev2", "rev-mlp", hidden=7, activation="tanh"),
    node("head", "pool-linear", outputs=CLASSES),
)
BRANCHES = (
    node("stem", "linear-stem", features=6),
    node("left0", "rev-mlp", hidden=7, activation="tanh"),
    node("left1", "rev-mlp", hidden=5, activation="tanh"),
    node("right", "rev-mlp", hidden=4, activation="tanh", inputs=["stem"]),
    node("join", "add", inputs=["left1", "right"]),
    node("head", "pool-linear", outputs=CLASSES),
)
SHAPES = {"chain": (8,), "revnet": (3, 6, 6), "skip": (8,), "branches": (8,)}
GRAPHS = {"chain": CHAIN, "revnet": REVNET, "skip": SKIP, "branches": BRANCHES}


@frozen(kw_only=True)
class OfUpdates(Prepared):
    """A run whose learning rate is a function of a stage's updates alone."""

    at_update: Callable[[int], float]

    def rate(self, _: object) -> Callable[[int], float]:
        return self.at_update


@frozen(kw_only=True)
class Pipeline:
    network: MeasuredNetwork
    programs: tuple[StageProgram, ...]
    executors: tuple[StageExecutor, ...]
    runtime: Scheduler

    def parameters(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}/{key}": value.detach().clone()
            for executor in self.executors
            for name, module in executor.modules.items()
            for key, value in module.state_dict().items()
        }

    def train(self, batches: Sequence[Batch], start: int = 0) -> list[HeadResult]:
        results: list[HeadResult] = []
        self.runtime.train(batches, range(start, start + len(batches)), results.append)
        return results


def node_inputs(nodes: Sequence[NodeSpec]) -> list[NodeInput]:
    """Nodes' tables as `build_graph` reads them, with first-party blocks or those of a module."""
    read = [(BLOCKS.get(table.block) or REGISTRY.resolve(BLOCK, table.block)).read(table.options)[0] for table in nodes]
    return [
        NodeInput(spec=table, plugin=plugin, path=("graph", "node", index))
        for index, (table, plugin) in enumerate(zip(nodes, read, strict=True))
    ]


def built_graph(nodes: Sequence[NodeSpec]) -> NodeGraph:
    graph, problems = build_graph(node_inputs(nodes))
    assert not problems
    assert graph is not None
    return graph


def message_types(streams: Mapping[str, int]) -> MessageTypes:
    """Small messages, for tests in which only the number of each node's streams matters."""
    return MessageTypes(streams={name: (StreamType((1,), "float32"),) * count for name, count in streams.items()})


_MEASURED = Memo[tuple[NodeGraph, Mapping[str, NodeShapes]]]()
"""Of the pipelines, each measured once: that takes longer than to build them."""


def measured_network(nodes: Sequence[NodeSpec], spec: Spec, facts: DataFacts) -> MeasuredNetwork:
    """Nodes and the rest of a specification, as the check and the measure step return them."""

    def measured() -> tuple[NodeGraph, Mapping[str, NodeShapes]]:
        graph = built_graph(nodes)
        return graph, measure_shapes(graph, facts)

    graph, shapes = _MEASURED.get((nodes, facts.shape, facts.dtype), measured)
    method, schedule = check_method(spec.method, spec.optimizer.clip)
    # Nothing is to be decided by cost, where stages, devices and depths are given.
    not_needed: Any = dict.fromkeys(("loaded", "loss", "optimizer", "lr_schedule", "data", "callbacks", "metrics"))
    checked = CheckedSpec(
        spec=spec,
        graph=graph,
        method=method,
        schedule=schedule,
        stages=given_stages(graph, spec, schedule),
        facts=facts,
        training_samples=None,
        **not_needed,
    )
    return MeasuredNetwork(checked=checked, shapes=shapes)


def programs_of(network: MeasuredNetwork) -> tuple[StageProgram, ...]:
    """The stages' programs, placed and lowered."""
    return network.lowering.placed(place_network(network, planned_devices(network.spec.partition)))


def pipeline(
    nodes: Sequence[NodeSpec],
    shape: tuple[int, ...],
    *,
    method: str = "petra",
    schedule: RequestedSchedule | None = None,
    settings: dict[str, Any] | None = None,
    accumulation: int = 1,
    stages: tuple[tuple[str, ...], ...] | Literal["per-block"] = "per-block",
    devices: tuple[str, ...] = ("cpu",),
    compute: Compute = "float64",
    memory_format: Literal["channels-last", "contiguous"] = "channels-last",
    precision: dict[str, Any] | None = None,
    rate: Callable[[int], float] = lambda _: 0.05,
    optimizer: str = "sgd",
    clip: ClipSpec | None = None,
    dtype: Dtype | None = None,
    policy: Policy = "arrival",
    batch: int = 64,
    evaluation_batch: int | None = None,
    micro_batches: int = 1000,
    compiled: bool = False,
    **optimizer_options: Any,
) -> Pipeline:
    """Build a pipeline; with a correction among the options, the optimizer is `corrected` around the one that is named."""
    spec = Spec(
        data=DataSpec(name="random", batch=batch, evaluation_batch=evaluation_batch),
        method=MethodSpec(name=method, schedule=schedule, accumulation=accumulation, **(settings or {})),
        partition=PartitionSpec(stages=stages, devices=("cpu",)),
        precision=PrecisionSpec(compute=compute, memory_format=memory_format, **(precision or {})),
        optimizer=OptimizerSpec(name=optimizer, clip=clip),
        run=RunSpec(compile=compiled),
    )
    facts = DataFacts(shape=shape, dtype=dtype or "float32", classes=CLASSES)
    network = measured_network(nodes, spec, facts)
    network = evolve(network, checked=evolve(network.checked, optimizer=configured(optimizer, optimizer_options)))
    # In turn on devices of any kinds, which no search compares here.
    placement = place_network(network, planned_devices(spec.partition))
    placed = network.lowering.placed(placement)
    programs = tuple(
        evolve(program, device=devices[index * len(devices) // len(placed)]) for index, program in enumerate(placed)
    )
    opened: Any = SimpleNamespace(facts=facts, replica=0, length=micro_batches)
    given: Any = {"opened": opened, "loss": CrossEntropy(), "callbacks": (), "initial": None, "rank": 0, "processes": 1}
    made = OfUpdates(network=network, placement=placement, programs=programs, at_update=rate, **given).executors()
    runtime = Scheduler(made, policy=policy)
    return Pipeline(network=network, programs=programs, executors=made, runtime=runtime)


def recorded_gradients(executor: StageExecutor) -> list[dict[str, torch.Tensor]]:
    """The gradient at each update of a stage, as it trains."""
    seen: list[dict[str, torch.Tensor]] = []
    step = executor.updater.step

    def recording(norm: torch.Tensor | None = None) -> None:
        executor.updater.average()
        seen.append(
            {
                f"{name}/{key}": p.grad.clone()
                for name, module in executor.modules.items()
                for key, p in module.named_parameters()
                if p.grad is not None
            }
        )
        step(norm)

    executor.updater.step = recording  # type: ignore[method-assign]
    return seen


def plain_gradients(
    modules: Mapping[str, Block], forward: Callable[[Tensor], Tensor], batch: Batch
) -> dict[str, torch.Tensor]:
    """The gradient of a plain network at one micro-batch, by node and parameter."""
    for module in modules.values():
        module.zero_grad()
    cross_entropy(forward(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
    return {
        f"{name}/{key}": p.grad
        for name, module in modules.items()
        for key, p in module.named_parameters()
        if p.grad is not None
    }


def plain_network(built: Pipeline) -> tuple[dict[str, Block], Callable[[torch.Tensor], torch.Tensor]]:
    """The same modules, called one after another as one plain module."""
    graph = built.network.graph
    modules = {name: copy.deepcopy(module) for executor in built.executors for name, module in executor.modules.items()}

    def forward(x: torch.Tensor) -> torch.Tensor:
        streams: dict[str, Streams] = {"input": (x,)}
        for name in graph.order:
            inputs = [stream for producer in graph.nodes[name].inputs for stream in streams[producer]]
            streams[name] = modules[name](*inputs)
        return streams[graph.head][0]

    return modules, forward


@cache
def _optimizer(name: str) -> Plugin:
    return discover().resolve(OPTIMIZER, name)


def configured(optimizer: str, options: dict[str, Any]) -> Plugin:
    if any(key in options for key in ("correction", "predict", "correct_discrepancy")):
        optimizer, options = "corrected", {"optimizer": optimizer, **options}
    return _optimizer(optimizer).read(options)[0]


def batches(
    shape: tuple[int, ...], count: int, size: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, *shape, generator=generator, dtype=dtype),
            torch.randint(CLASSES, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def same_bits(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def relative_error(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest over nodes of |difference| / |value|, taken over all of a node's parameters."""
    assert one.keys() == other.keys()
    nodes = {key.partition("/")[0] for key in one}
    worst = 0.0
    for name in nodes:
        keys = [key for key in one if key.partition("/")[0] == name and one[key].is_floating_point()]
        if keys:
            a = torch.cat([one[key].double().flatten() for key in keys])
            b = torch.cat([other[key].double().flatten() for key in keys])
            worst = max(worst, float((a - b).norm() / b.norm().clamp_min(torch.finfo(torch.float64).tiny)))
    return worst


def run_by_clock(
    executors: Sequence[StageExecutor],
    data: Sequence[Batch],
    accumulation: int,
    begin: Callable[[int], object] = lambda _: None,
) -> None:
    """PETRA equation (5): at each tick every stage does a forward, a backward and its update; forwards of m fall on tick m + D - d.

    Backwards fall on m + D + d, where d is the distance from the head and D the source's. `begin` is called with each tick.
    """
    distance = [(executor.program.depth - 1) // 2 for executor in executors]
    deepest, last = max(distance), len(data) - 1
    edges: dict[tuple[str, Edge, int], Any] = {}
    done = [0] * len(executors)
    for tick in range(len(data) + 2 * deepest):
        begin(tick)
        for executor, d in zip(executors, distance, strict=True):
            if not 0 <= (m := tick - (deepest - d)) <= last:
                continue
            received = {
                edge: (data[m][0],) if edge.producer == "input" else edges.pop(("forward", edge, m))
                for edge in executor.program.receives
            }
            target = data[m][1] if executor.program.holds_head else None
            for edge, streams in executor.forward(m, received, target)[0].items():
                edges["forward", edge, m] = streams
        for index, executor in reversed(list(enumerate(executors))):
            if not 0 <= (m := tick - (deepest + distance[index])) <= last:
                continue
            returned = {edge: edges.pop(("backward", edge, m)) for edge in executor.program.sends}
            for edge, message in executor.backward(m, returned, 1.0).items():
                edges["backward", edge, m] = message
            done[index] += 1
            if done[index] % accumulation == 0 or m == last:
                executor.update()
    assert not edges
