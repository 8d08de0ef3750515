"""Everything that a run refuses, refused before it starts: `run --dry-run` ends here, and `run` goes on from here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import torch
from attrs import frozen

from petra_graph.errors import Problem
from petra_graph.executor.learning_rate import horizon, learning_rate
from petra_graph.executor.stage import StageExecutor
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.check import Checked, Chosen, check_spec
from petra_graph.planning.compiled import Compiled, compile_graph
from petra_graph.planning.measure import Costs
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.program.costs import CostTable
from petra_graph.program.schedule import schedule_text
from petra_graph.registry.building import built, load
from petra_graph.registry.contracts import DataFacts, DataSet, Horizon, ParameterGroups
from petra_graph.runtime.scheduler.context import Policy
from petra_graph.spec.model import Spec
from petra_graph.training.assemble import Training, executors
from petra_graph.training.data_loading import MicroBatches, Part


@frozen(kw_only=True)
class Prepared:
    """A run that can start."""

    checked: Checked
    compiled: Compiled
    data: DataSet
    training: Training
    horizon: Horizon
    costs: Callable[[NodeGraph, Spec], CostTable]
    """Measures what nodes cost."""
    part: Part = "all"
    """What this process reads of the data."""
    replica: int = 0
    """The pipeline that this process belongs to."""

    @property
    def spec(self) -> Spec:
        """The specification as given."""
        return self.checked.spec

    @property
    def facts(self) -> DataFacts:
        """What the opened data set's samples look like."""
        return self.data.facts

    @property
    def global_clip(self) -> bool:
        """Whether all stages are clipped by one norm."""
        clip = self.spec.optimizer.clip
        return clip is not None and clip.scope == "global"

    @property
    def policy(self) -> Policy:
        """In which order this process begins operations; without one order, synchronised replicas could deadlock."""
        asked = self.spec.run.scheduling
        if asked != "auto":
            return asked
        on_gpu = any(program.device.startswith("cuda") for program in self.compiled.programs)
        return "static" if on_gpu or self.spec.partition.sync_batch_norm else "arrival"

    def executors(self) -> tuple[StageExecutor, ...]:
        """Build all stages: this allocates the network."""
        return executors(self.compiled.programs, self.compiled, self.spec, self.facts, self.training)

    def training_batches(self, epoch: int) -> MicroBatches:
        """Return the micro-batches of training epoch `epoch`, counted from 0."""
        return attrs.evolve(training_batches(self.data, self.spec, epoch), part=self.part, replica=self.replica)

    def test_batches(self) -> MicroBatches:
        """Return the evaluation batches: every sample, in order."""
        data = self.spec.data
        return MicroBatches(
            split=self.data.test,
            batch=data.evaluation_batch or data.batch,
            seed=self.spec.run.seed,
            epoch=0,
            workers=data.workers,
            shuffle=False,
            drop_last=False,
            part=self.part,
        )


def prepare(path: str, overrides: Iterable[str] = (), processes: int = 1) -> Prepared:
    """Check a specification to the end: plugins, graph, shapes, stages, devices, and the data set's files.

    Args:
        path: of the specification.
        overrides: values set on the command line.
        processes: how many share the stages; all of them prepare the same.

    Raises:
        SpecError: all that is wrong, located.
        PluginError: only plugins are at fault.
    """
    return prepare_checked(check_spec(path, overrides, import_local=True), processes)


def prepare_checked(checked: Checked, processes: int = 1) -> Prepared:
    """Do the same with a specification whose words are checked; errors as `prepare`."""
    findings = ProblemCollector()
    costs = Costs(checked)
    replicas = checked.spec.partition.replicas if not processes % checked.spec.partition.replicas else 1
    findings.add(_replica_problems(checked.spec, processes))
    compiled = findings.attempt(
        lambda: compile_graph(checked.graph, checked.spec, checked.facts, costs, processes=processes // replicas),
        (),
        inside=True,
    )
    data = findings.attempt(lambda: _opened(checked.data), (), inside=True)
    if compiled is not None:
        findings.add(_head_problems(compiled, data.facts if data is not None else checked.facts))
    if data is not None:
        batches = findings.attempt(lambda: training_batches(data, checked.spec, 0), (), inside=True)
        findings.add(_probe_problems(checked.spec, batches, processes))
    training = findings.attempt(lambda: _training(checked, data), (), inside=True)
    findings.raise_any(checked.loaded)
    assert compiled is not None
    assert data is not None
    assert training is not None
    length = horizon(checked.spec, len(training_batches(data, checked.spec, 0)))
    return Prepared(checked=checked, compiled=compiled, data=data, training=training, horizon=length, costs=costs)


def outline(prepared: Prepared) -> dict[str, Any]:
    """Return what a run would be: for `run --dry-run`."""
    compiled = prepared.compiled
    return {
        "name": prepared.spec.name,
        "nodes": len(compiled.graph.nodes),
        "stages": len(compiled.programs),
        "parameters": compiled.parameters,
        "method": compiled.method.name,
        "schedule": schedule_text(compiled.schedule),
        "accumulation": prepared.spec.method.accumulation,
        "devices": list(dict.fromkeys(program.device for program in compiled.programs)),
        "training samples": len(prepared.data.train),
        "test samples": len(prepared.data.test),
        "micro-batches": prepared.spec.run.epochs * len(prepared.training_batches(0)),
        "updates": prepared.horizon.updates,
    }


def fix_arithmetic(prepared: Prepared) -> None:
    """Set what the bits depend on beside the specification: threads, and on CUDA deterministic kernels.

    cuBLAS reads its workspace setting when it starts, so this comes before anything is allocated there
    (https://docs.nvidia.com/cuda/cublas/#results-reproducibility).
    """
    torch.set_num_threads(prepared.spec.run.threads)
    if any(program.device.startswith("cuda") for program in prepared.compiled.programs):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False


def training_batches(data: DataSet, spec: Spec, epoch: int) -> MicroBatches:
    """Return the micro-batches of training epoch `epoch`, counted from 0."""
    return MicroBatches(
        split=data.train,
        batch=spec.data.batch,
        seed=spec.run.seed,
        epoch=epoch,
        workers=spec.data.workers,
        shuffle=True,
        drop_last=True,
        replicas=spec.partition.replicas,
    )


def _opened(chosen: Chosen) -> DataSet:
    data: DataSet = built(chosen.plugin, chosen.options)
    return data


def _training(checked: Checked, data: DataSet | None) -> Training | None:
    """Build loss and learning rate, and try the optimizer on one parameter; the rate needs the data set's length."""
    loss = built(checked.loss.plugin, checked.loss.options)
    built(checked.optimizer.plugin, _some_parameter(), checked.optimizer.options)
    if data is None:
        return None
    length = horizon(checked.spec, len(training_batches(data, checked.spec, 0)))
    factor = built(checked.lr_schedule.plugin, checked.lr_schedule.options, length)
    return Training(
        loss=loss,
        build_optimizer=load(checked.optimizer.plugin),
        optimizer_options=checked.optimizer.options,
        rate=learning_rate(checked.spec, checked.optimizer.options.lr, factor, length),
    )


def _some_parameter() -> ParameterGroups:
    return ParameterGroups(decayed=[torch.nn.Parameter(torch.zeros(1))], undecayed=[])


def _replica_problems(spec: Spec, processes: int) -> list[Problem]:
    """Ask whether replicas can have processes of their own, and step on their own."""
    replicas, path = spec.partition.replicas, ("partition", "replicas")
    problems = []
    if processes % replicas:
        message = f"{replicas} replicas need a multiple of {replicas} processes (got {processes})"
        problems.append(Problem(message=message, hint="start so many with --processes or torchrun", path=path))
    if replicas > 1 and spec.optimizer.clip is not None and spec.optimizer.clip.scope == "global":
        message = "one norm over all stages is not taken over replicas"
        hint = 'set scope = "stage", or replicas = 1'
        problems.append(Problem(message=message, hint=hint, path=("optimizer", "clip", "scope")))
    if replicas > 1 and spec.partition.sync_batch_norm and spec.run.scheduling == "arrival":
        message = "replicas that synchronise batch normalisation need one order of operations, and arrival has none"
        problems.append(
            Problem(message=message, hint='set it to "static", or leave it out', path=("run", "scheduling"))
        )
    return problems


def _probe_problems(spec: Spec, batches: MicroBatches | None, processes: int) -> list[Problem]:
    """Ask whether a probe can see all stages, and as often as it is to look."""
    if spec.probe is not None and processes > 1:
        message = f"a probe looks at all stages at once, and {processes} processes share them"
        return [Problem(message=message, hint="run in one process, or leave [probe] out", path=("probe",))]
    if spec.probe is None or batches is None or spec.probe.per_epoch <= len(batches):
        return []
    return [
        Problem(
            message=f"an epoch has {len(batches)} micro-batches, and {spec.probe.per_epoch} are to be probed",
            hint=f"make it {len(batches)} or less",
            path=("probe", "per_epoch"),
        )
    ]


def _head_problems(compiled: Compiled, facts: DataFacts) -> list[Problem]:
    """Compare the head's outputs with the number of classes."""
    head = compiled.graph.nodes[compiled.graph.head]
    outputs = compiled.shapes[head.name].outputs
    if facts.classes is None or outputs == ((facts.classes,),):
        return []
    came = ", ".join("x".join(map(str, shape)) for shape in outputs)
    return [
        Problem(
            message=f'the head "{head.name}" has {came} outputs, but the data set has {facts.classes} classes',
            hint=f"make it {facts.classes}",
            path=head.path,
        )
    ]
