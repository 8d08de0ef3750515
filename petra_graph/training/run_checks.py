"""Rules of a run that depend on its processes or on its opened data set."""

from __future__ import annotations

from collections.abc import Iterator

from petra_graph.errors import Problem
from petra_graph.planning.measure import MeasuredNetwork
from petra_graph.registry.contracts import DataFacts
from petra_graph.spec.model import Spec


def replica_problems(spec: Spec, processes: int) -> Iterator[Problem]:
    """Yield the problems of replicas that cannot have processes of their own, or cannot step on their own."""
    replicas, clip = spec.partition.replicas, spec.optimizer.clip
    if processes % replicas:
        message = f"{replicas} replicas need a multiple of {replicas} processes (got {processes})"
        hint = "start so many with --processes or torchrun"
        yield Problem(message=message, hint=hint, path=("partition", "replicas"))
    if replicas > 1 and clip is not None and clip.scope == "global":
        message, hint = "one norm over all stages is not taken over replicas", 'set scope = "stage", or replicas = 1'
        yield Problem(message=message, hint=hint, path=("optimizer", "clip", "scope"))
    if replicas > 1 and spec.partition.sync_batch_norm and spec.run.scheduling == "arrival":
        message = "replicas that synchronise batch normalisation need one order of operations, and arrival has none"
        yield Problem(message=message, hint='set it to "static", or leave it out', path=("run", "scheduling"))


def probe_problems(spec: Spec, micro_batches: int | None, processes: int) -> Iterator[Problem]:
    """Yield the problems of a probe that cannot see all stages, or that is to look more often than an epoch allows.

    Args:
        spec: the specification.
        micro_batches: of an epoch; None: not known.
        processes: of the run.
    """
    if spec.probe is None:
        return
    if processes > 1:
        message = f"a probe looks at all stages at once, and {processes} processes share them"
        yield Problem(message=message, hint="run in one process, or leave [probe] out", path=("probe",))
    elif micro_batches is not None and spec.probe.per_epoch > micro_batches:
        message = f"an epoch has {micro_batches} micro-batches, and {spec.probe.per_epoch} are to be probed"
        yield Problem(message=message, hint=f"make it {micro_batches} or less", path=("probe", "per_epoch"))


def head_problems(network: MeasuredNetwork, facts: DataFacts) -> Iterator[Problem]:
    """Yield the problem of a head whose outputs are not one for each class."""
    head = network.graph.nodes[network.graph.head]
    outputs = network.shapes[head.name].outputs
    if facts.classes is not None and outputs != ((facts.classes,),):
        shapes = ", ".join("x".join(map(str, shape)) for shape in outputs)
        message = f'the head "{head.name}" has {shapes} outputs, but the data set has {facts.classes} classes'
        yield Problem(message=message, hint=f"make it {facts.classes}", path=head.path)
