"""Executors from programs: modules built with their own random keys, moved to their devices, given optimizers."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen

from petra_graph.blocks.parameter_groups import parameter_groups
from petra_graph.executor.compiled import compile_functions
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.executor.recorded import CudaGraphs
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.update import LearningRate, Updater, learning_rate, read_interval
from petra_graph.measure.build_block import initial_blocks, tie
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.contract import Builder
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.loss_and_metric import Loss
from petra_graph.plugins.optimizer import needs_delays, rate_ratios
from petra_graph.plugins.stage_facts import UNDELAYED, Horizon, StageFacts
from petra_graph.program.stage_program import StageProgram
from petra_graph.units import noun


@frozen(kw_only=True)
class Training:
    """The loss, the optimizer and the learning rates of the executors."""

    loss: Loss
    build_optimizer: Builder
    optimizer: str = "the optimizer"
    """The optimizer's plugin, as messages name it."""
    optimizer_options: Any
    rate: Callable[[StageFacts], LearningRate]
    """Returns the learning rates of a stage."""


def train_with(network: MeasuredNetwork, loss: Loss, length: Horizon) -> Training:
    """Return what all stages train with; they share the factors of a schedule that does not ask for a stage's facts."""
    optimizer, schedule = network.checked.optimizer, network.checked.lr_schedule
    shared = schedule.build(length, stage=UNDELAYED)
    of_stage = schedule.plugin.asks_for_stage

    def rate(stage: StageFacts) -> LearningRate:
        factor = schedule.build(length, stage=stage) if of_stage else shared
        return learning_rate(network.spec, optimizer.options.lr, factor, length, stage)

    return Training(
        loss=loss,
        optimizer=optimizer.plugin.owned,
        build_optimizer=Builder(optimizer.plugin),
        optimizer_options=optimizer.options,
        rate=rate,
    )


def executors(
    programs: Sequence[StageProgram],
    network: MeasuredNetwork,
    facts: DataFacts,
    training: Training,
    stages: Sequence[StageFacts],
    *,
    replica: int = 0,
) -> tuple[StageExecutor, ...]:
    """Build one executor for each program; `stages` are the facts of each.

    Initial parameters follow from (seed, node name) alone, and are drawn on the CPU: neither the partition nor the
    devices change them.
    """
    spec = network.spec
    made = []
    for program, stage in zip(programs, stages, strict=True):
        interval = read_interval(torch.device(program.device), spec.run.log_every)
        numerics = NumericsContext.of_run(spec, facts, program.device, replica=replica)
        begun = initial_blocks(network.graph, network.shapes, spec.run.seed, program.nodes)
        modules = {name: place(block, numerics) for name, block in begun.items()}
        tie(modules, network.shapes)
        if spec.run.compile:
            for name, block in modules.items():
                compile_functions(name, block)
        groups, options, deferred = parameter_groups(modules.values()), training.optimizer_options, interval > 1
        parameters = [*groups.decayed, *groups.undecayed]
        optimizer = training.build_optimizer(groups, options, stage=stage) if parameters else None
        updater = Updater(
            parameters,
            optimizer,
            training.rate(stage),
            spec.optimizer.clip,
            deferred,
            training.optimizer,
            () if optimizer is None else rate_ratios(optimizer, options.lr),
            stage if needs_delays(optimizer) else None,
        )
        made.append(StageExecutor(program, modules, numerics, updater, training.loss, read_interval=interval))
    if spec.run.cuda_graphs == "auto":
        record(made, compiled=spec.run.compile)
    return tuple(made)


def record(executors: Sequence[StageExecutor], *, compiled: bool) -> None:
    """Record operations as CUDA graphs, with one pool a device; warn in one line of stages that record nothing for the same reason."""
    pools: dict[str, CudaGraphs] = {}
    stages: dict[str, list[str]] = defaultdict(list)
    for executor in executors:
        device = executor.program.device
        if not device.startswith("cuda"):
            reason = "graphs are of CUDA devices"
        elif compiled:
            reason = "run.compile is set, and compiled functions may allocate and copy as a graph must not"
        else:
            if device not in pools:
                pools[device] = CudaGraphs()
            reason = executor.record(pools[device])
        stages[reason].append(str(executor.program.index))
    stages.pop("", None)
    for reason, indices in stages.items():
        message = f"run.cuda_graphs: {noun(len(indices), 'stage')} {', '.join(indices)}: nothing is recorded: {reason}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
