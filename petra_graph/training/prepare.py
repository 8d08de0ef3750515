"""The preparation of a run: specification checked, measured, placed and lowered, data set opened.

    CheckedSpec --measure--> MeasuredNetwork --place--> Placement --lower--> StagePrograms --> Prepared, which `run` trains

Whatever a run refuses, it refuses here: `run --dry-run` ends here. No problem hides another one: each part is attempted with the parts that
there are, and all problems are raised together; what is behind that has every part.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from attrs import evolve, frozen

from petra_graph.blocks.block_kinds import parameter_groups
from petra_graph.compiler.spec_checks import replica_problems
from petra_graph.errors import Path, Problem, SpecError, shown
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.executor.recorded import Recorder, calls, compile_functions, cuda_graphs
from petra_graph.executor.stage import StageExecutor
from petra_graph.executor.update import LearningRate, Updater, horizon, learning_rate, read_interval
from petra_graph.measure.nodes import initial_blocks, tie
from petra_graph.planning.check_spec import CheckedSpec, ProblemCollector, check_spec
from petra_graph.planning.network import MeasuredNetwork, head_problems, measure, policy_of
from petra_graph.planning.place_network import SavedPlan, place_on_present, place_on_processes, present_devices
from petra_graph.planning.plan_spec import delay_problems
from petra_graph.plugins.author_code import noted
from petra_graph.plugins.callback import Callback
from petra_graph.plugins.loss_and_metric import Loss
from petra_graph.plugins.optimizer import needs_delays, rate_ratios
from petra_graph.plugins.stage_facts import StageFacts
from petra_graph.program.schedule import Policy
from petra_graph.program.stage_program import Placement, StageProgram
from petra_graph.spec.load_spec import Given
from petra_graph.spec.model import Spec
from petra_graph.training.data import OpenedData, Part
from petra_graph.training.identity import Fingerprint
from petra_graph.training.initial_weights import InitialWeights, initial_weights
from petra_graph.training.trials import try_parts, try_strangers
from petra_graph.units import plural


@frozen
class NamedCallback:
    """A callback, named in what it raises, which fails the run: one without the averages that it was started for is not the run that was asked for."""

    name: str
    path: Path  # of its options in the specification
    callback: Callback

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the callback; what it raises has a note that names it."""
        with noted(f'callback "{self.name}"'):
            return getattr(self.callback, method)(*arguments, **named)

    def state(self) -> Any:
        """Return the callback's state, written as JSON and read again."""
        with noted(f'what `state` of callback "{self.name}" returns, as JSON'):
            return json.loads(json.dumps(self.callback.state()))


@frozen(kw_only=True)
class Prepared:
    """A run that can start."""

    network: MeasuredNetwork
    placement: Placement  # of the stages, on devices as the planner counts them: a process is one
    programs: tuple[StageProgram, ...]  # of all stages, on devices that are present
    opened: OpenedData
    loss: Loss
    callbacks: tuple[NamedCallback, ...]
    initial: InitialWeights | None  # the weights that the run begins with; None: they are random
    folders: Sequence[str] = ()  # of the specification that was first given, where modules of blocks may lie
    saved: SavedPlan | None = None  # the plan whose placement the run has
    probe: Any = None  # the callback that observes operations of all stages
    rank: int
    processes: int  # of the run, those of all replicas

    @property
    def checked(self) -> CheckedSpec:
        return self.network.checked

    @property
    def spec(self) -> Spec:
        return self.network.spec

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What network and loss make of a few samples."""
        return Fingerprint.of(self.network, self.opened)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The process of each stage of the first replica."""
        return tuple(stage.rank for stage in self.placement.stages)

    @property
    def records(self) -> bool:
        """Whether this process hosts the head of the first replica: it makes the run directory, and records."""
        return self.rank == self.ranks[-1]

    @property
    def stages(self) -> tuple[StageFacts, ...]:
        """What plugins may know of each stage."""
        count, replicas, length = len(self.programs), self.spec.partition.replicas, self.opened.length
        return tuple(program.facts(stages=count, replicas=replicas, micro_batches=length) for program in self.programs)

    @property
    def on_cuda(self) -> bool:
        return any(program.device.startswith("cuda") for program in self.programs)

    @property
    def policy(self) -> Policy:
        """The order in which a process begins operations."""
        return policy_of(self.spec, "cuda" if self.on_cuda else "cpu")

    def rate(self, stage: StageFacts) -> LearningRate:
        """Return the learning rates of a stage."""
        lr, length = self.checked.optimizer.options.lr, horizon(self.spec, self.opened.length)
        return learning_rate(self.spec, lr, self.checked.lr_schedule.build(length, stage=stage), length, stage)

    def executors(self, programs: Sequence[StageProgram] | None = None) -> tuple[StageExecutor, ...]:
        """Build the executors of some stages, or of all: this allocates the network. Initial parameters follow from (seed, node name) alone, drawn on the CPU."""
        spec, network, optimizer, stages = self.spec, self.network, self.checked.optimizer, self.stages
        made = list[StageExecutor]()
        for program in self.programs if programs is None else programs:
            stage, interval = stages[program.index - 1], read_interval(torch.device(program.device), spec.run.log_every)
            numerics = NumericsContext.of_run(spec, self.opened.facts, program.device, replica=self.opened.replica)
            begun = initial_blocks(network.graph, network.shapes, spec.run.seed, program.nodes)
            modules = {name: place(block, numerics) for name, block in begun.items()}
            tie(modules, network.shapes)
            for name, block in modules.items() if spec.run.compile else ():
                compile_functions(name, block)
            groups = parameter_groups(modules.values())
            parameters = [*groups.decayed, *groups.undecayed]
            built = optimizer.build(groups, stage=stage) if parameters else None
            ratios = () if built is None else rate_ratios(built, optimizer.options.lr)
            how = self.rate(stage), spec.optimizer.clip, interval, optimizer.owned, ratios
            updater = Updater(parameters, built, *how, stage if needs_delays(built) else None)
            made.append(StageExecutor(program, modules, numerics, updater, self.loss))
        if spec.run.record != "off":
            record(made, spec.run.record, compiled=spec.run.compile)
        return tuple(made)


def prepare(
    given: Given | CheckedSpec,
    overrides: Iterable[str] = (),
    processes: int = 1,
    resumed_in: Sequence[str] | None = None,
    *,
    saved: SavedPlan | None = None,
    rank: int = 0,
) -> Prepared:
    """Prepare a run of a specification, or of one that is checked, without overrides; all of its processes prepare the same, but for what `rank` reads.

    A resumed run looks for modules of blocks `resumed_in` the folders of its first specification, too; with `saved` it takes a plan's placement. Raises
    SpecError, PluginError: all problems, located; PluginError if only plugins are at fault; NoFeasiblePlan: no placement keeps the memory limits.
    """
    checked = given
    if not isinstance(checked, CheckedSpec):
        checked = check_spec(checked, overrides, folders=resumed_in or ())
    spec, problems, begins = checked.spec, ProblemCollector(loaded=checked.loaded), resumed_in is None
    loss = problems.attempt(checked.loss.build)
    problems.attempt(lambda: checked.tried_optimizer)
    problems.add([*replica_problems(spec, processes), *_split_problems(checked)])
    built = zip(checked.callbacks, [problems.attempt(one.build) for one in checked.callbacks], strict=True)
    callbacks = tuple(NamedCallback(one.name, one.path, made) for one, made in built if made is not None)
    for metric in checked.metrics:
        problems.attempt(metric.build)
    data, measured = problems.attempt(_open, checked), problems.attempt(measure, checked)
    in_pipeline = processes if processes % spec.partition.replicas else processes // spec.partition.replicas
    present = problems.attempt(present_devices, spec.partition, in_pipeline)
    # It observes the operations of one process; while a micro-batch that it has `chosen` is on its way, no checkpoint is cut.
    probe = next((one for one in callbacks if hasattr(one.callback, "observe_stages")), None)
    if probe is not None:
        found = probe.callback.problems(None if data is None else data.length, processes)  # type: ignore[attr-defined]
        problems.add(evolve(one, path=(*probe.path, *one.path)) for one in found)
    network, initial, placement = None, None, None
    if measured is not None:
        samples = measured.checked.training_samples if data is None else len(data.train)
        network = evolve(measured, checked=evolve(measured.checked, training_samples=samples))
        problems.add(head_problems(network, checked.facts if data is None else data.facts))
        if begins and spec.init.weights is not None:
            initial = problems.attempt(initial_weights, spec.init, network)
        if present is not None:
            if saved is not None:
                placement = problems.attempt(saved.placement, network, present, in_pipeline)
            elif in_pipeline == 1:
                placement = problems.attempt(place_on_present, network, present)
            else:
                placement = problems.attempt(place_on_processes, network, in_pipeline)
    problems.raise_any()
    assert data is not None
    assert loss is not None
    assert network is not None
    assert present is not None
    assert placement is not None
    # To the planner a process is a device; a program names the one that torch knows there.
    devices = [stage.device if in_pipeline == 1 else present[stage.rank] for stage in placement.stages]
    placed = network.lowering.placed(placement)
    programs = tuple(evolve(one, device=device) for one, device in zip(placed, devices, strict=True))
    problems.add(delay_problems(network, programs))
    # Where the first stage and the head are in one process, it reads both.
    replica, at = divmod(rank, in_pipeline)
    read_at: dict[int, Part] = {placement.stages[-1].rank: "targets", placement.stages[0].rank: "all"}
    opened = evolve(data, part=read_at.get(at, "nothing"), replica=replica)
    prepared = Prepared(
        network=network,
        placement=placement,
        programs=programs,
        opened=opened,
        loss=loss,
        callbacks=callbacks,
        folders=checked.loaded.folders if begins else resumed_in or (),
        saved=saved,
        initial=initial,
        probe=None if probe is None else probe.callback,
        rank=rank,
        processes=processes,
    )
    # A schedule that asks for its stage may refuse one of them.
    problems.require(list, map(prepared.rate, prepared.stages))
    problems.require(try_strangers, network, opened)
    if begins:  # a resumed run has been compared
        problems.require(try_parts, network, opened)
    return prepared


def _open(checked: CheckedSpec) -> OpenedData:
    """Open the data set of a run; SpecError: there are too few training samples for a micro-batch; other errors as of `OpenedData.open`."""
    opened = OpenedData.open(checked)
    if not opened.length:
        held = ", as the validation takes the others" * (checked.spec.data.validation is not None)
        message = f"batch must be at most the {plural(len(opened.train), 'training sample')}{held} (got {opened.whole})"
        raise SpecError(Problem(message=message, path=("data", "batch")))
    return opened


def _split_problems(checked: CheckedSpec) -> Iterator[Problem]:
    """Yield the metrics that are of the split that no evaluation after an epoch reads: a callback would take the other split's."""
    evaluated = checked.spec.data.evaluated
    named = [((*one.path, "metric"), getattr(one.options, "metric", None)) for one in checked.callbacks]
    for path, metric in [*named, (("checkpoint", "best"), checked.spec.checkpoint.best)]:
        if str(metric).startswith("validation/" if evaluated == "test" else "test/"):
            message = f"{path[-1]} = {shown(metric)}, and the evaluations after epochs read the {evaluated} data"
            hint = f"name one of the {evaluated} data, or change data.validation"
            yield Problem(message=message, hint=hint, path=path)


def record(executors: Sequence[StageExecutor], how: str, *, compiled: bool) -> None:
    """Record operations as "calls" or "graphs", these with one pool a device; warn of each stage that records nothing."""
    recorders = defaultdict[str, Recorder](cuda_graphs if how == "graphs" else lambda: calls)
    for executor in executors:
        device = executor.program.device
        if how == "graphs" and not device.startswith("cuda"):
            reason = "graphs are of CUDA devices"
        elif compiled:
            reason = "run.compile is set, whose functions cannot be recorded"
        else:
            reason = executor.record(recorders[device])
        if reason:
            message = f"run.record: stage {executor.program.index}: nothing is recorded: {reason}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def fix_arithmetic(prepared: Prepared) -> None:
    """Set what the bits depend on besides the specification: threads, and on CUDA deterministic kernels."""
    torch.set_num_threads(prepared.spec.run.threads)
    if prepared.on_cuda:
        # cuBLAS reads it when it starts: https://docs.nvidia.com/cuda/cublas/#results-reproducibility
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Else torch fills what it allocates, and the host waits while it fills pinned memory; no bit of ours depends on that.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = False
        in_tf32 = prepared.spec.precision.fp32_precision == "tf32"
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = in_tf32
