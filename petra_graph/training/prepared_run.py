"""The preparation of a run: specification checked, measured, placed and lowered, data set opened.

Whatever a run refuses, it refuses here: `run --dry-run` ends here, and `run` continues from here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from attrs import evolve, field, frozen

from petra_graph.compiler.planner_inputs import policy_of
from petra_graph.compiler.spec_checks import replica_problems
from petra_graph.executor.learning_rate import LearningRate, learning_rate
from petra_graph.executor.stage_executor import StageExecutor
from petra_graph.kinds.data_set import DataFacts
from petra_graph.kinds.logger import load_logger, missing_package
from petra_graph.kinds.loss import Loss
from petra_graph.kinds.lr_schedule import Horizon
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
from petra_graph.program.device_types import Device
from petra_graph.program.placement import Placement
from petra_graph.program.schedule import Policy, schedule_text
from petra_graph.program.stage_program import StageProgram
from petra_graph.registry.joints import joint
from petra_graph.spec.load_spec import Given
from petra_graph.spec.model import Spec
from petra_graph.training.before_run import Tried, try_before_run
from petra_graph.training.data.micro_batches import OpenedData, open_data
from petra_graph.training.initial_weights import InitialWeights, initial_weights
from petra_graph.training.loop.callbacks import NamedCallback, build_callbacks
from petra_graph.training.record.digests import Digests, digest_code, digest_split
from petra_graph.training.run_probe import RunProbe
from petra_graph.training.stage_assembly import Training, executors
from petra_graph.training.start_reporter import StartReporter


@frozen(kw_only=True)
class Prepared:
    """A run that can start."""

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
    tried: Tried = field(factory=Tried)
    """What the self-check has found."""
    saved: SavedPlan | None = None
    """The plan whose placement the run has, where one was given."""
    added: Mapping[str, tuple[Any, ...]] = field(factory=dict)
    """The objects that plugins of added kinds have built, by the table that names them."""
    probe: RunProbe | None = None

    @property
    def checked(self) -> CheckedSpec:
        return self.network

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
        return {**digest_code(self.checked), **digest_split(data.train), **digest_split(data.test)}

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
    reporter = reporter or StartReporter()
    with reporter.step("checking the specification and its plugins"):
        checked = check_spec(given, overrides, import_local=True, folders=resumed_in or ())
    return prepare_checked(checked, reporter, processes, saved, begins=resumed_in is None)


def prepare_checked(
    checked: CheckedSpec,
    reporter: StartReporter,
    processes: int = 1,
    saved: SavedPlan | None = None,
    *,
    begins: bool = True,
) -> Prepared:
    """Prepare a run whose specification is checked, as `prepare`; where the run begins, its first weights may be those of a file.

    No problem hides another one: what can be tried is tried, and all problems are raised together.
    """
    problems = ProblemCollector(loaded=checked.loaded)
    _load_loggers(checked, problems)
    with reporter.step("measuring the network's shapes"):
        measured_network = problems.attempt(measured, checked)
    known = measured_network or checked  # its number of replicas is decided
    problems.add(replica_problems(known.spec, processes))
    with reporter.step(f"opening the {known.data.plugin}", ours=known.data.plugin.is_first_party):
        data = problems.attempt(open_data, known)
    parts = problems.attempt(_build_parts, known, problems)
    devices = _devices(known.spec, processes, problems)
    probe: RunProbe | None = None if known.spec.probe is None else joint("probe", "[probe]")(known.spec.probe)
    if measured_network is None or data is None or parts is None or devices is None:
        problems.attempt(lambda: known.tried_optimizer)
        if measured_network is not None:
            _check_fit(measured_network, data, processes, problems, probe)
            problems.attempt(_initial, measured_network, begins=begins)
            if devices is not None:
                problems.attempt(_place, measured_network, devices, saved)
        problems.fail()

    network = problems.require(_bounded, evolve(measured_network, training_samples=len(data.data.train)))
    opened = data.under(network.spec)
    with reporter.step("placing the stages"):
        placement = problems.attempt(_place, network, devices, saved)
    _check_fit(network, opened, processes, problems, probe)
    initial = problems.attempt(_initial, network, begins=begins)
    problems.attempt(lambda: network.tried_optimizer)
    training = problems.attempt(_training, network, parts.loss, opened.horizon)
    if problems.any or placement is None or training is None:
        problems.fail()

    programs = network.programs(placement)
    problems.add(correction_problems(network, programs))
    problems.raise_any()
    prepared = Prepared(
        network=network,
        placement=placement,
        programs=tuple(evolve(one, device=device) for one, device in zip(programs, devices.of(placement), strict=True)),
        opened=opened,
        training=training,
        callbacks=parts.callbacks,
        saved=saved,
        added=parts.added,
        initial=initial,
        probe=probe,
    )
    for stage in prepared.stages:
        problems.require(training.rate, stage)
    if network.spec.run.self_check:
        prepared = evolve(prepared, tried=problems.require(try_before_run, prepared, reporter))
    return prepared


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


@frozen(kw_only=True)
class _Devices:
    """The devices of a run: those that its specification names, and those that are here."""

    planned: tuple[Device, ...]
    present: tuple[str, ...]
    in_pipeline: int
    """Processes of one pipeline."""

    def of(self, placement: Placement) -> list[str]:
        """Return the present device of every stage."""
        return [stage.device if self.in_pipeline == 1 else self.present[stage.rank] for stage in placement.stages]


def _devices(spec: Spec, processes: int, problems: ProblemCollector) -> _Devices | None:
    replicas = spec.partition.pipelines
    in_pipeline = processes if processes % replicas else processes // replicas
    present = problems.attempt(present_devices, spec.partition, in_pipeline)
    planned = problems.attempt(planned_devices, spec.partition)
    if present is None or planned is None:
        return None
    return _Devices(planned=planned, present=tuple(present), in_pipeline=in_pipeline)


def _place(network: MeasuredNetwork, devices: _Devices, saved: SavedPlan | None) -> Placement:
    if saved is not None:
        return saved.placement(network, devices.present, devices.in_pipeline)
    if devices.in_pipeline == 1:
        return place_on_present(network, devices.planned, devices.present)
    return place_on_processes(network, devices.planned, devices.in_pipeline)


@frozen(kw_only=True)
class _Parts:
    """What is built from options alone."""

    loss: Loss
    callbacks: tuple[NamedCallback, ...]
    added: Mapping[str, tuple[Any, ...]]


def _build_parts(checked: CheckedSpec, problems: ProblemCollector) -> _Parts:
    """Build what needs neither the network nor the data, and try the metrics.

    Raises:
        SpecError, PluginError: of the loss; all others are added to the problems.
    """
    callbacks = problems.attempt(build_callbacks, checked.callbacks)
    for metric in checked.metrics:
        problems.attempt(metric.build)
    added = {table: tuple(problems.attempt(one.build) for one in plugins) for table, plugins in checked.added.items()}
    return _Parts(loss=checked.loss.build(), callbacks=callbacks or (), added=added)


def _check_fit(
    network: MeasuredNetwork,
    data: OpenedData | None,
    processes: int,
    problems: ProblemCollector,
    probe: RunProbe | None,
) -> None:
    """Add what does not fit between the network, the data and the probe; without the data, their declaration says what they are."""
    problems.add(head_problems(network, network.facts if data is None else data.data.facts))
    if probe is not None:
        problems.add(probe.problems(None if data is None else data.micro_batches, processes))


def _initial(network: MeasuredNetwork, *, begins: bool) -> InitialWeights | None:
    init = network.spec.init
    return initial_weights(init, network) if begins and init.weights is not None else None


def _training(network: MeasuredNetwork, loss: Loss, length: Horizon) -> Training:
    """Return what all stages train with; they share the factors of a schedule that does not ask for a stage's facts."""
    optimizer, schedule = network.optimizer, network.lr_schedule
    shared = schedule.build(length, stage=UNDELAYED)
    of_stage = knows_stage(schedule.plugin)

    def rate(stage: StageFacts) -> LearningRate:
        factor = schedule.build(length, stage=stage) if of_stage else shared
        return learning_rate(network.spec, optimizer.options.lr, factor, length, stage)

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
