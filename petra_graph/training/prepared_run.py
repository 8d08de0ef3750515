"""The preparation of a run: specification checked, measured, placed and lowered, data set opened.

Whatever a run refuses, it refuses here: `run --dry-run` ends here, and `run` continues from here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any

import torch
from attrs import evolve, field, frozen

from petra_graph.compiler.planner_inputs import policy_of
from petra_graph.compiler.spec_checks import probe_problems, replica_problems
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.executor.stage_update import LearningRate, learning_rate
from petra_graph.kinds.data_set import DataFacts
from petra_graph.kinds.logger import load_logger, missing_package
from petra_graph.kinds.lr_schedule import Horizon
from petra_graph.kinds.optimizer import ParameterGroups
from petra_graph.kinds.plugin import builder, knows_stage
from petra_graph.kinds.stage_facts import UNDELAYED, StageFacts
from petra_graph.planning.advice.delay_corrections import correction_problems
from petra_graph.planning.advice.plan_assumptions import products_note
from petra_graph.planning.advice.plan_warnings import warnings_without_prediction
from petra_graph.planning.check.check_spec import check_spec
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.planning.machine.spec_devices import planned_devices, present_devices
from petra_graph.planning.network.measure_network import MeasuredNetwork, head_problems
from petra_graph.planning.place.place_network import place_on_present, place_on_processes
from petra_graph.planning.place.saved_plan import SavedPlan
from petra_graph.planning.place.staleness_bound import bounded, consequences
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.planning.replica_choice import measured
from petra_graph.program.placement import Placement
from petra_graph.program.schedule import Policy, schedule_text
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.load_spec import Given
from petra_graph.spec.model import Spec
from petra_graph.training.checkpoints.initial_weights import InitialWeights, initial_weights
from petra_graph.training.data.opened_data import OpenedData, open_data
from petra_graph.training.loop.callbacks import NamedCallback, build_callbacks
from petra_graph.training.record.digests import Digests, code_of, split_of
from petra_graph.training.self_check import SelfCheck
from petra_graph.training.stage_assembly import Training, executors
from petra_graph.training.start_reporter import StartReporter


@frozen(kw_only=True)
class Prepared:
    """A run that can start."""

    checked: CheckedSpec
    network: MeasuredNetwork
    placement: Placement
    """The placement of the stages, on devices as the planner counts them: a process is one."""
    programs: tuple[StageProgram, ...]
    """The programs of all stages, on devices that are present."""
    opened: OpenedData
    training: Training
    callbacks: tuple[NamedCallback, ...]
    """The callbacks, in the order in which they are called."""
    initial: InitialWeights | None
    """The weights that the run begins with; None: they are random."""
    doubts: Sequence[str] = ()
    """Warnings of the self-check: what plugins may mean."""
    saved: SavedPlan | None = None
    """The plan whose placement the run has, where one was given."""
    added: Mapping[str, tuple[Any, ...]] = field(factory=dict)
    """The objects that plugins of added kinds have built, by the table that names them."""

    @property
    def spec(self) -> Spec:
        return self.network.spec

    @property
    def facts(self) -> DataFacts:
        return self.opened.data.facts

    @cached_property
    def digests(self) -> Digests:
        """Those of the code and of the data."""
        data = self.opened.data
        return {**code_of(self.checked), **split_of(data.train), **split_of(data.test)}

    @property
    def loss(self) -> str:
        """The loss's plugin, as messages name it."""
        return self.checked.loss.plugin.owned

    @property
    def ranks(self) -> tuple[int, ...]:
        """The process of each stage, counted within one replica."""
        return tuple(stage.rank for stage in self.placement.stages)

    @property
    def stages(self) -> tuple[StageFacts, ...]:
        """What plugins may know of each stage."""
        return _stages(self.programs, self.spec, self.opened)

    @property
    def global_clip(self) -> bool:
        """Whether all stages are clipped by one norm."""
        clip = self.spec.optimizer.clip
        return clip is not None and clip.scope == "global"

    @property
    def notes(self) -> list[str]:
        """What was decided for the run, or has a choice, in sentences."""
        products = products_note(self.spec.precision, {"cuda"} if self.on_cuda else ())
        return [*consequences(self.network), *self.placement.notes, *products]

    @property
    def on_cuda(self) -> bool:
        return any(program.device.startswith("cuda") for program in self.programs)

    @property
    def policy(self) -> Policy:
        """The order in which a process begins operations."""
        return policy_of(self.spec, "cuda" if self.on_cuda else "cpu")

    def executors(self, programs: Sequence[StageProgram] | None = None) -> tuple[StageExecutor, ...]:
        """Build the executors of some stages, or of all: this allocates the network."""
        chosen, stages = self.programs if programs is None else programs, self.stages
        own = [stages[program.index - 1] for program in chosen]
        return executors(chosen, self.network, self.facts, self.training, own, replica=self.opened.batches.replica)


def prepare(
    given: Given,
    overrides: Iterable[str] = (),
    processes: int = 1,
    resumed_in: Sequence[str] | None = None,
    *,
    reporter: StartReporter | None = None,
    saved: SavedPlan | None = None,
) -> Prepared:
    """Prepare a run: plugins, graph, shapes, stages, devices, and the data set's files.

    Args:
        given: the specification.
        overrides: values set on the command line.
        processes: how many share the stages; all of them prepare the same.
        resumed_in: folders of a resumed run's first specification, where modules of blocks may also lie; None: the run begins.
        reporter: says which step takes long.
        saved: a plan, whose placement the run takes.

    Raises:
        SpecError, PluginError: all problems, located; PluginError where only plugins are at fault.
        NoFeasiblePlan: no placement keeps the devices' memory limits.
    """
    with closing(reporter or StartReporter()) as says:
        with says.step("checking the specification and its plugins"):
            checked = check_spec(given, overrides, import_local=True, folders=resumed_in or ())
        return prepare_checked(checked, says, processes, saved, begins=resumed_in is None)


def prepare_checked(
    checked: CheckedSpec,
    reporter: StartReporter,
    processes: int = 1,
    saved: SavedPlan | None = None,
    *,
    begins: bool = True,
) -> Prepared:
    """Prepare a run whose specification is checked, as `prepare`; where the run begins, its first weights may be those of a file."""
    problems = ProblemCollector(loaded=checked.loaded)
    _load_loggers(checked, problems)
    with reporter.step("measuring the network's shapes"):
        network = problems.attempt(measured, checked)
    checked = checked if network is None else network
    spec = checked.spec
    problems.add(replica_problems(spec, processes))
    data_set = checked.data.plugin
    with reporter.step(f"opening the {data_set}", ours=data_set.is_first_party):
        opened = problems.attempt(open_data, checked)
    if network is not None and opened is not None:
        network = problems.attempt(_bounded, evolve(network, training_samples=len(opened.data.train)))
    if network is not None and opened is not None:
        checked, spec, opened = network, network.spec, opened.under(network.spec)
    with reporter.step("placing the stages"):
        placed = _placed(network, spec, processes, problems, saved)
    if network is not None:
        problems.add(head_problems(network, checked.facts if opened is None else opened.data.facts))
    problems.add(probe_problems(spec, None if opened is None else opened.micro_batches, processes))
    initial = None
    if begins and network is not None and spec.init.weights is not None:
        initial = problems.attempt(initial_weights, spec.init, network)
    callbacks = problems.attempt(build_callbacks, checked.callbacks)
    training = problems.attempt(_training, checked, None if opened is None else opened.horizon)
    for metric in checked.metrics:
        problems.attempt(metric.build)
    added = {table: tuple(problems.attempt(one.build) for one in plugins) for table, plugins in checked.added.items()}
    problems.raise_any()
    assert network is not None
    assert placed is not None
    assert opened is not None
    assert training is not None
    assert callbacks is not None
    placement, present = placed
    programs = network.programs(placement)
    problems.add(correction_problems(network, programs))
    problems.raise_any()
    stages = _stages(programs, spec, opened)
    for stage in stages:
        problems.require(training.rate, stage)
    doubts: Sequence[str] | None = None
    if spec.run.self_check:
        tried = SelfCheck(
            checked=checked,
            network=network,
            opened=opened,
            training=training,
            stages=stages,
            kept=[name for one in programs for part in one.segments if part.keeps == "graph" for name in part.nodes],
            reporter=reporter,
        )
        doubts = problems.attempt(tried.run)
        problems.raise_any()
    return Prepared(
        checked=checked,
        network=network,
        placement=placement,
        programs=tuple(evolve(program, device=device) for program, device in zip(programs, present, strict=True)),
        opened=opened,
        training=training,
        callbacks=callbacks,
        doubts=doubts or (),
        saved=saved,
        added=added,
        initial=initial,
    )


def _load_loggers(checked: CheckedSpec, problems: ProblemCollector) -> None:
    for index, logger in enumerate(checked.loggers):
        missing = missing_package(logger.plugin)
        if missing is not None:
            problems.add([evolve(missing, path=("logger", index, "name"))])
        elif not logger.plugin.is_first_party:  # their code is imported when they are opened
            problems.at("logger", index, "name").attempt(load_logger, logger.plugin)


def advice(prepared: Prepared) -> list[str]:
    """Return the warnings that are known without a plan."""
    return list(warnings_without_prediction(prepared.network, prepared.programs))


def outline(prepared: Prepared) -> dict[str, Any]:
    """Return the figures that `run --dry-run` prints."""
    spec, network, opened = prepared.spec, prepared.network, prepared.opened
    return {
        "name": spec.name,
        "nodes": len(network.graph.nodes),
        "stages": len(prepared.programs),
        "parameters": network.parameters_in(prepared.programs),
        "method": network.method.name,
        "schedule": schedule_text(prepared.placement.schedule),
        "accumulation": spec.method.accumulation,
        "devices": list(dict.fromkeys(program.device for program in prepared.programs)),
        "training samples": len(opened.data.train),
        "test samples": len(opened.data.test),
        "micro-batches": spec.run.epochs * len(opened.batches),
        "updates": opened.horizon.updates,
    }


def fix_arithmetic(prepared: Prepared) -> None:
    """Set what the bits depend on besides the specification: threads, and on CUDA deterministic kernels.

    cuBLAS reads its workspace setting when it starts, so this comes before anything is allocated there
    (https://docs.nvidia.com/cuda/cublas/#results-reproducibility).
    """
    torch.set_num_threads(prepared.spec.run.threads)
    if prepared.on_cuda:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Else torch fills what it allocates, and the host waits while it fills pinned memory; no bit of ours depends on that.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = False
        in_tf32 = prepared.spec.precision.fp32_precision == "tf32"
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = in_tf32


def _bounded(network: MeasuredNetwork) -> MeasuredNetwork:
    return bounded(network, planned_devices(network.spec.partition))


def _placed(
    network: MeasuredNetwork | None,
    spec: Spec,
    processes: int,
    problems: ProblemCollector,
    saved: SavedPlan | None,
) -> tuple[Placement, Sequence[str]] | None:
    """Return the placement, with the present device of every stage."""
    replicas = spec.partition.pipelines
    in_pipeline = processes if processes % replicas else processes // replicas
    present = problems.attempt(present_devices, spec.partition, in_pipeline)
    devices = problems.attempt(planned_devices, spec.partition)
    if network is None or present is None or devices is None:
        return None
    if saved is not None:
        placement = problems.attempt(saved.placement, network, present, in_pipeline)
    elif in_pipeline == 1:
        placement = problems.attempt(place_on_present, network, devices, present)
    else:
        placement = problems.attempt(place_on_processes, network, devices, in_pipeline)
    if placement is None:
        return None
    return placement, [stage.device if in_pipeline == 1 else present[stage.rank] for stage in placement.stages]


def _training(checked: CheckedSpec, length: Horizon | None) -> Training | None:
    """Build loss and learning rates, and try the optimizer on one parameter; the rates need the data set's length.

    All stages share the factors of a schedule that does not ask for a stage's facts.
    """
    optimizer, schedule, loss = checked.optimizer, checked.lr_schedule, checked.loss.build()
    optimizer.build(ParameterGroups(decayed=[torch.nn.Parameter(torch.zeros(1))], undecayed=[]), stage=UNDELAYED)
    if length is None:
        return None
    shared = schedule.build(length, stage=UNDELAYED)
    of_stage = knows_stage(schedule.plugin)

    def rate(stage: StageFacts) -> LearningRate:
        factor = schedule.build(length, stage=stage) if of_stage else shared
        return learning_rate(checked.spec, optimizer.options.lr, factor, length, stage)

    return Training(
        loss=loss,
        optimizer=optimizer.plugin.owned,
        build_optimizer=builder(optimizer.plugin),
        optimizer_options=optimizer.options,
        rate=rate,
    )


def _stages(programs: Sequence[StageProgram], spec: Spec, opened: OpenedData) -> tuple[StageFacts, ...]:
    """Return what plugins may know of each stage; `programs` are those of all."""
    replicas, micro_batches = spec.partition.pipelines, len(opened.batches)
    return tuple(
        program.facts(stages=len(programs), replicas=replicas, micro_batches=micro_batches) for program in programs
    )
