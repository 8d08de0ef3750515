"""Executors from programs: modules built with their own random keys, moved to their devices, given optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import frozen

from petra_graph.blocks import Block
from petra_graph.blocks.randomness import fork_rng, random_key
from petra_graph.executor.deferred_reads import read_interval
from petra_graph.executor.first_passes import FirstPasses
from petra_graph.executor.first_steps import FirstSteps
from petra_graph.executor.numerics import Normalisation, NumericsContext, place
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.update import LearningRate, Updater, parameter_groups, rate_ratios
from petra_graph.measure.shapes import build_block
from petra_graph.planning.measure import MeasuredNetwork
from petra_graph.program.stage_program import StageProgram
from petra_graph.registry.contracts import BuildOptimizer, DataFacts, Loss
from petra_graph.spec.model import ClipSpec


@frozen(kw_only=True)
class Training:
    """The loss, the optimizer and the learning rate of every executor."""

    loss: Loss
    build_optimizer: BuildOptimizer
    optimizer: str = "the optimizer"
    """Its plugin, as messages name it."""
    optimizer_options: Any
    rate: LearningRate

    def updater(
        self, modules: Mapping[str, Block], clip: ClipSpec | None, *, deferred: bool = False, observed: bool = False
    ) -> Updater:
        """Return the optimizer step of a stage; `observed`: its first steps are."""
        groups = parameter_groups(modules.values())
        parameters = [*groups.decayed, *groups.undecayed]
        optimizer = self.build_optimizer(groups, self.optimizer_options) if parameters else None
        first = FirstSteps(modules, parameters, self.optimizer, deferred) if observed else None
        ratios = () if optimizer is None else rate_ratios(optimizer, self.optimizer_options.lr)
        return Updater(parameters, optimizer, self.rate, clip, deferred, self.optimizer, first, ratios)


def executors(
    programs: Sequence[StageProgram],
    network: MeasuredNetwork,
    facts: DataFacts,
    training: Training,
    *,
    replica: int = 0,
) -> tuple[StageExecutor, ...]:
    """Build one executor for each program.

    Initial parameters follow from (seed, node name) alone, and are drawn on the CPU: neither the partition nor the
    devices change them.
    """
    spec = network.spec
    made = []
    for program in programs:
        device = torch.device(program.device)
        interval = read_interval(device, spec.run.log_every)
        numerics = NumericsContext(
            device=device,
            precision=spec.precision,
            seed=spec.run.seed,
            replica=replica,
            normalisation=Normalisation.of(facts),
            deferred=interval > 1,
            first_passes=FirstPasses() if spec.run.self_check else FirstPasses(passes=0),
        )
        modules = {name: place(_initial(name, network), numerics) for name in program.nodes}
        updater = training.updater(modules, spec.optimizer.clip, deferred=interval > 1, observed=spec.run.self_check)
        made.append(StageExecutor(program, modules, numerics, updater, training.loss, read_interval=interval))
    return tuple(made)


def _initial(name: str, network: MeasuredNetwork) -> Block:
    with fork_rng(random_key(network.spec.run.seed, name, "initial"), torch.device("cpu")):
        return build_block(network.graph.nodes[name], network.shapes[name].inputs)
