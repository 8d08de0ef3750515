"""What the benchmarks share: a pipeline of a specification's network, and the same network as a plain module."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import torch
from stage_peaks import StagePeaks
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from petra_graph.blocks import Block, Streams
from petra_graph.blocks.parameter_groups import parameter_groups
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.stage import StageExecutor
from petra_graph.graph.node_graph import INPUT, NodeGraph
from petra_graph.measure.cost_table import Conditions, measure_costs
from petra_graph.plugins.contract import load
from petra_graph.program.node_costs import CostTable
from petra_graph.program.schedule import Policy
from petra_graph.program.stage_program import StageProgram
from petra_graph.record.run_directory import environment
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.stage_io import MicroBatch
from petra_graph.training.prepare import Prepared, prepare

RESULTS = Path(__file__).parent / "results"


class Plain(nn.Module):
    """A pipeline's nodes as one module under autograd, with its own copy of the parameters."""

    def __init__(self, graph: NodeGraph, executors: Sequence[StageExecutor], evaluation: NumericsContext) -> None:
        super().__init__()
        self.graph = graph
        self.evaluation = evaluation
        self.checkpointed = False
        """Whether each node keeps its input alone, and runs again in the backward."""
        blocks = {name: block for executor in executors for name, block in executor.modules.items()}
        self.blocks = nn.ModuleDict({_key(name): copy.deepcopy(block) for name, block in blocks.items()})

    def forward(self, samples: Tensor) -> Tensor:
        """Map stored samples to the head's output."""
        streams: dict[str, Streams] = {INPUT: (self.evaluation.prepare(samples),)}
        for name in self.graph.order:
            inputs = [stream for producer in self.graph.nodes[name].inputs for stream in streams[producer]]
            # Dense streams, as the runtime has them: convolutions of the views that a split gives are slower.
            block = self.blocks[_key(name)]
            outputs = checkpoint(block, *inputs, use_reentrant=False) if self.checkpointed else block(*inputs)
            streams[name] = self.evaluation.canonicalize(outputs)
        (output,) = streams[self.graph.head]
        return output


class PlainTraining:
    """The plain module's training step and its parts."""

    def __init__(self, ready: Prepared, runtime: Scheduler, data: list[MicroBatch], device: torch.device) -> None:
        executors = runtime.executors
        evaluation = NumericsContext(device=device, precision=ready.spec.precision, seed=0)
        self.module = Plain(ready.network.graph, executors, evaluation)
        self.loss = loss_of(ready)
        groups = parameter_groups([cast(Block, block) for block in self.module.blocks.values()])
        self.optimizer = load(ready.checked.optimizer.plugin)(groups, ready.checked.optimizer.options)
        self.data = [(samples.to(device), target.to(device)) for samples, target in data]

    def train(self) -> None:
        for samples, target in self.data:
            torch.autograd.backward(self.loss(self.module(samples), target))
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def train_checkpointed(self) -> None:
        self.module.checkpointed = True
        self.train()
        self.module.checkpointed = False

    def forward_without_graph(self) -> None:
        with torch.no_grad():
            self.forward_with_graph()

    def forward_with_graph(self) -> None:
        for samples, target in self.data:
            self.loss(self.module(samples), target)


def prepared(spec: str, *overrides: str) -> Prepared:
    """Prepare a specification on random data."""
    return prepare(spec, overrides)


def runtime_of(ready: Prepared) -> Scheduler:
    """Build its stages in this process."""
    return Scheduler(ready.executors())


def loss_of(ready: Prepared) -> Callable[[Tensor, Tensor], Tensor]:
    """Build its loss."""
    loss: Callable[[Tensor, Tensor], Tensor] = load(ready.checked.loss.plugin)(ready.checked.loss.options)
    return loss


def costs_of(ready: Prepared) -> CostTable:
    """Measure what its nodes cost."""
    spec, training = ready.spec, ready.training
    conditions = Conditions(
        batch=spec.data.batch,
        facts=ready.facts,
        precision=spec.precision,
        loss=training.loss,
        build_optimizer=training.build_optimizer,
        optimizer_options=training.optimizer_options,
        clip=spec.optimizer.clip,
    )
    return measure_costs(ready.network.graph, conditions)


def stage_peaks(ready: Prepared, micro_batches: int) -> tuple[int, ...]:
    """Train on so many micro-batches, and return the most bytes that each stage held."""
    peaks = StagePeaks(ready.executors())
    runtime = Scheduler(peaks.executors)
    with peaks:
        runtime.train(training_data(ready, micro_batches), range(micro_batches), lambda _: None)
    return tuple(peaks.total[program.index] for program in ready.programs)


def device_peaks(
    ready: Prepared, programs: Sequence[StageProgram], micro_batches: int, policy: Policy
) -> Mapping[str, int]:
    """Train on so many micro-batches, and return the most bytes that each device of some programs held.

    All stages run on this processor, as if the devices had these names; samples count on the device that reads them.
    """
    peaks = StagePeaks(ready.executors(), {program.index: program.device for program in programs})
    runtime = Scheduler(peaks.executors, policy=policy)
    with peaks:
        runtime.train(peaks.loaded(training_data(ready, micro_batches)), range(micro_batches), lambda _: None)
    return peaks.of_devices


def training_data(ready: Prepared, micro_batches: int) -> Sequence[MicroBatch]:
    return [batch for _, batch in zip(range(micro_batches), cycle(ready.opened.epoch(0)), strict=False)]


def save(name: str, values: dict[str, Any]) -> Path:
    """Write a result with its date and environment."""
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    path = RESULTS / f"{name}-{now:%Y-%m-%d}.json"
    setting = {key: value for key, value in environment().items() if key != "command"}
    path.write_text(json.dumps({"date": now.isoformat(timespec="seconds"), **values, "environment": setting}, indent=2))
    return path


def _key(name: str) -> str:
    return name.replace(".", "_")
