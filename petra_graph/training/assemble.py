"""From programs to executors: modules built with their own random keys, placed, and given optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import frozen

from petra_graph.blocks import Block
from petra_graph.blocks.randomness import fork_rng, random_key
from petra_graph.executor.learning_rate import LearningRate
from petra_graph.executor.numerics import Normalisation, NumericsContext, place
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.update import Updater, parameter_groups
from petra_graph.measure.shapes import build_block
from petra_graph.planning.compiled import Compiled
from petra_graph.program.stage_program import StageProgram
from petra_graph.registry.contracts import BuildOptimizer, DataFacts, Loss
from petra_graph.spec.model import Spec


@frozen(kw_only=True)
class Training:
    """What executors need beside their program."""

    loss: Loss
    build_optimizer: BuildOptimizer
    optimizer_options: Any
    rate: LearningRate


def executors(
    programs: Sequence[StageProgram],
    compiled: Compiled,
    spec: Spec,
    facts: DataFacts,
    training: Training,
    *,
    replica: int = 0,
) -> tuple[StageExecutor, ...]:
    """Build one executor for each of some stages.

    Initial parameters follow from (seed, node name) alone, and are drawn on the CPU: neither the partition nor the
    devices change them.
    """
    return tuple(_executor(program, compiled, spec, facts, training, replica=replica) for program in programs)


def _executor(
    program: StageProgram, compiled: Compiled, spec: Spec, facts: DataFacts, training: Training, *, replica: int
) -> StageExecutor:
    evaluation = NumericsContext(
        device=torch.device(program.device),
        precision=spec.precision,
        seed=spec.run.seed,
        replica=replica,
        normalisation=Normalisation.of(facts),
    )
    modules = {name: place(_initial(name, compiled, spec.run.seed), evaluation) for name in program.nodes}
    return StageExecutor(program, modules, evaluation, _updater(modules, spec, training), training.loss)


def _initial(name: str, compiled: Compiled, seed: int) -> Block:
    with fork_rng(random_key(seed, name, "initial"), torch.device("cpu")):
        return build_block(compiled.graph.nodes[name], compiled.shapes[name].inputs)


def _updater(modules: Mapping[str, Block], spec: Spec, training: Training) -> Updater:
    groups = parameter_groups(modules.values())
    parameters = [*groups.decayed, *groups.undecayed]
    optimizer = training.build_optimizer(groups, training.optimizer_options) if parameters else None
    return Updater(parameters, optimizer, training.rate, spec.optimizer.clip)
