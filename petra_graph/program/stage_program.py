"""The program of one stage, as a value: the compiler writes it, executors and the models of memory and time read it."""

from collections.abc import Sequence

from attrs import evolve, frozen

from petra_graph.plugins.stage_facts import StageFacts, steady_staleness
from petra_graph.program.channels import Channel, Edge
from petra_graph.program.device_types import Device
from petra_graph.program.method import is_delayed
from petra_graph.spec.model import Flush, Keeps, KeepsByNode, Kind, Schedule, Uses


@frozen
class InputEdge:
    """An edge into a segment, with the number of tensors that it carries."""

    edge: Edge
    streams: int
    returns_activation: bool
    """Whether the producer reconstructs from this consumer's activation, which comes with the backward message."""


@frozen(kw_only=True)
class Segment:
    """Nodes that run and differentiate together: one, or consecutive buffered nodes, which store one input between them."""

    nodes: tuple[str, ...]
    kind: Kind
    keeps: Keeps
    backward: Uses
    inputs: tuple[InputEdge, ...]
    outputs: tuple[Edge, ...]
    """One edge a consumer of the last node, in declared order; gradients are summed in this order."""
    activation_from: Edge | None
    """The output edge on which the activation returns; None where nothing is reconstructed."""


@frozen(kw_only=True)
class StageProgram:
    """One stage: segments in topological order, and the edges and channels to other stages."""

    index: int
    segments: tuple[Segment, ...]
    depth: int
    accumulation: int
    flush: Flush
    device: str
    receives: tuple[Edge, ...]
    """Edges from other stages, or from the data, in topological order."""
    sends: tuple[Edge, ...]
    channels: tuple[Channel, ...] = ()
    """The channels on which the stage sends or receives, in the same order in every stage."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(name for segment in self.segments for name in segment.nodes)

    @property
    def delayed(self) -> bool:
        """Whether parameters may change between a micro-batch's forward and its backward."""
        return is_delayed(self.depth, self.flush)

    @property
    def staleness(self) -> float:
        """How late the stage's gradients are, in updates on average, once the pipeline is full."""
        return steady_staleness(self.depth, self.accumulation, self.flush)

    @property
    def holds_head(self) -> bool:
        return any(segment.kind == "head" for segment in self.segments)

    def facts(self, *, stages: int, replicas: int, micro_batches: int) -> StageFacts:
        """Return what plugins may know of the stage."""
        return StageFacts(
            index=self.index,
            stages=stages,
            depth=self.depth,
            accumulation=self.accumulation,
            replicas=replicas,
            flush=self.flush,
            micro_batches=micro_batches,
        )


# --- where the stages are ---


@frozen(kw_only=True)
class Stage:
    """A set of nodes that share one delay and one optimizer step."""

    nodes: tuple[str, ...]
    device: str
    distance: int
    """Longest path to the head's stage, counted in stages (the paper's J - j)."""
    rank: int = 0
    """The process that hosts the stage, counted within one replica."""


@frozen(kw_only=True)
class Partition:
    """All stages, from the source's to the head's, in topological order."""

    stages: tuple[Stage, ...]

    def spread_over(self, devices: Sequence[str]) -> "Partition":
        """Return the same stages spread over `devices` in order, each device with as many as another or one more."""
        count, each = len(self.stages), enumerate(self.stages)
        return Partition(stages=tuple(evolve(one, device=devices[at * len(devices) // count]) for at, one in each))


@frozen(kw_only=True)
class Placement(Partition):
    """Stages on devices: what the planner decides, and what programs and predictions follow from."""

    devices: tuple[Device, ...]
    """In the order of the pipeline, devices without a stage among them; each stage names one of them."""
    schedule: Schedule
    """The depth of every stage, or the schedule from which the depths follow."""
    kept: KeepsByNode | None = None
    """What every node keeps, where that was decided here; None: what the specification says."""
    notes: tuple[str, ...] = ()
    """What was decided otherwise than the specification asks, and why, for people."""
