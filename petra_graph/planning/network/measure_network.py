"""The measure step: the shapes of a network's nodes, with their costs where a later step needs them.

Neither the data set's files nor the devices are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from attrs import asdict, evolve, field, frozen

from petra_graph.compiler.lower import Lowering, MessageTypes
from petra_graph.compiler.planner_inputs import PlannerInputs, clocks_of, policy_of, transport_of
from petra_graph.compiler.profile_check import checked_profile, settings_of
from petra_graph.compiler.spec_checks import keep_problems
from petra_graph.compiler.stated_devices import stated_link
from petra_graph.errors import Problem, SpecError, at_path
from petra_graph.kinds.data_set import DataFacts
from petra_graph.kinds.plugin import FIRST_PARTY, builder
from petra_graph.measure.cost_table import Conditions, measure_costs
from petra_graph.measure.node_shapes import Memo, NodeShapes, outputs_for
from petra_graph.measure.shared_parameters import shared_parameter_problems
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.planning.network.graph_passes import measure_changed
from petra_graph.planning.network.shared_across_stages import counted_once, kept_together, shared_in_stages
from petra_graph.program.device_types import Device
from petra_graph.program.node_costs import CostTable
from petra_graph.program.placement import Placement
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.value_types import as_mapping


@frozen(kw_only=True)
class MeasuredNetwork(CheckedSpec):
    """A checked specification with the shapes of its nodes."""

    shapes: Mapping[str, NodeShapes]
    decided: tuple[str, ...] = ()
    """What was decided of the specification, for people."""
    known_costs: Memo[CostTable] = field(factory=Memo)
    """Of this network and its variants."""

    @property
    def parameters(self) -> int:
        """The number of their values, a shared one counted once."""
        return counted_once(self.shapes, [self.graph.order])[0]

    def parameters_in(self, programs: Iterable[StageProgram]) -> int:
        """Return the number of their values in a run, whose stages may have copies of a shared one."""
        return counted_once(self.shapes, [program.nodes for program in programs])[0]

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches of an epoch; None where the number of samples is not known."""
        whole, most = self.micro_batches_of_data, self.spec.run.micro_batches
        return whole if whole is None or most is None else min(whole, most)

    @property
    def micro_batches_of_data(self) -> int | None:
        """Micro-batches of an epoch that a trial has not shortened."""
        samples = self.training_samples
        return None if samples is None else samples // (self.spec.data.batch * self.spec.partition.pipelines)

    @property
    def messages(self) -> MessageTypes:
        """The layouts of messages between stages, at the specification's micro-batch and precision."""
        return MessageTypes(
            streams={name: node.streams for name, node in self.shapes.items()},
            precision=self.spec.precision,
            batch=self.spec.data.batch,
            evaluation_batch=self.spec.data.test_batch,
        )

    @property
    def lowering(self) -> Lowering:
        method = self.spec.method
        return Lowering(
            graph=self.graph,
            method=self.method,
            accumulation=method.accumulation,
            messages=self.messages,
            last_stage_keeps_graph=method.last_stage == "keep-graph",
            kept=method.keep if isinstance(method.keep, Mapping) else {},
            allow_stored=method.allow_stored,
        )

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that a profile must have been taken with, in addition to the network."""
        passes = {one.plugin.name: as_mapping(one.options) for one in self.passes}
        delay = None if self.correction is None else self.correction.options
        return settings_of(
            self.spec, (self.optimizer.plugin.name, self.optimizer.options, delay), self.loss.plugin.name, passes
        )

    def costs(self) -> CostTable:
        """Return what nodes cost, measured once for each set of kinds, micro-batch, precision and clipping.

        A step calls it only where costs decide something.

        Raises:
            SpecError: a block can be run neither without values nor on the CPU.
            PluginError: code cannot be imported.
        """
        spec = self.spec
        nodes = [
            (node.name, node.kind, node.inputs, node.plugin, node.options, node.wrappers)
            for node in self.graph.nodes.values()
        ]
        plugins = [(part.plugin, part.options) for part in (self.loss, self.optimizer)]
        used = (*(plugin for plugin, _ in plugins), *(node.plugin for node in self.graph.nodes.values()))
        owners = {plugin.distribution for plugin in used if plugin is not None}
        known = _known_costs if owners == {FIRST_PARTY} else self.known_costs
        del known[:-_KNOWN_NETWORKS]
        key = (nodes, plugins, self.facts, spec.data.batch, spec.precision, spec.optimizer.clip, self.correction)
        return known.get(key, self._measured_costs)

    def _measured_costs(self) -> CostTable:
        conditions = Conditions(
            batch=self.spec.data.batch,
            facts=self.facts,
            precision=self.spec.precision,
            loss=self.loss.build(),
            build_optimizer=builder(self.optimizer.plugin),
            optimizer_options=self.optimizer.options,
            optimizer=self.optimizer.plugin.owned,
            clip=self.spec.optimizer.clip,
        )
        with at_path("loss", "name"):  # blocks and optimizers have paths of their own
            return measure_costs(self.graph, conditions)

    def planner_inputs(self, devices: tuple[Device, ...], *, overlap: bool = False) -> PlannerInputs:
        """Return the inputs of placement and prediction; this measures costs.

        Raises:
            SpecError: a block cannot be run, or the profile does not belong to the specification.
            PluginError: code cannot be imported.
        """
        spec, kind = self.spec, devices[0].type.kind
        costs = self.costs()
        profile = checked_profile(spec, self.graph, costs, self.settings, devices[0].type)
        stages = None if self.stages is None else [stage.nodes for stage in self.stages.stages]
        costs = costs.counted_once(shared_in_stages(self.graph, self.shapes, spec.partition, stages))
        if profile is not None:
            costs = costs.with_workspaces(profile.workspace)
        if profile is not None and profile.link is not None:
            devices = tuple(evolve(device, link=stated_link(spec.partition, profile.link)) for device in devices)
        return PlannerInputs(
            **asdict(self.lowering, recurse=False),
            costs=costs,
            schedule=self.schedule,
            transport=transport_of(spec.precision, spec.run.transport, kind),
            between_processes=spec.run.transport,
            devices=devices,
            order=spec.partition.order,
            policy=policy_of(spec, kind),
            clocks=clocks_of(devices, costs, spec.precision.products, profile),
            profile=profile,
            overlap=overlap,
            replicas=spec.partition.pipelines,
            together=kept_together(self.graph, self.shapes, spec.partition),
            outside_seconds=0.0 if profile is None else profile.outside,
        )

    def programs(self, placement: Placement) -> tuple[StageProgram, ...]:
        """Return the program of every stage: the lower step."""
        return self.lowering.placed(placement)


def measure(checked: CheckedSpec) -> MeasuredNetwork:
    """Measure the shapes of every node.

    Raises:
        SpecError: a block refuses its input, two nodes share a parameter, or a grid does not make a reversible node exact.
        PluginError: a block's code cannot be imported.
    """
    facts, graph = checked.facts, checked.graph
    dtype = torch.int64 if facts.dtype == "int64" else torch.float32
    graph, shapes = measure_changed(graph, checked.passes, facts.shape, dtype)
    checked = evolve(checked, graph=graph)
    if problems := list(keep_problems(checked.spec.method, graph)):
        raise SpecError(problems)
    if shared := list(shared_parameter_problems(graph, shapes)):
        raise SpecError(shared)
    network = MeasuredNetwork(**asdict(checked, recurse=False), shapes=shapes)
    check_grid(network)
    return network


_KNOWN_NETWORKS = 8
_known_costs = Memo[CostTable]()
"""Of the latest networks whose plugins are all the first party's, since that code stays as it is throughout a process: a notebook that
plans and trains one network measures it once."""


def check_grid(network: MeasuredNetwork) -> None:
    """Check that streams on a grid make every reversible node exact.

    Raises:
        SpecError: a block does more than add to its streams.
    """
    problems = [
        Problem(
            message=f'node "{node.name}": block "{node.block}" does more than add to its streams, so a grid is of no use',
            hint='set precision.streams = "float", kind = "buffered", or use an additive coupling',
            path=node.path,
        )
        for node in network.graph.nodes.values()
        if node.kind == "reversible" and not network.shapes[node.name].additive
    ]
    if problems and network.spec.precision.streams == "grid":
        raise SpecError(problems)


def head_problems(network: MeasuredNetwork, facts: DataFacts) -> Iterator[Problem]:
    """Yield the problem of a head that does not have an output for each class, where targets are classes.

    With several targets a sample, the classes are a dimension before or behind theirs, as the loss reads them. Several outputs are
    what the loss makes of them; those of the first party read one.
    """
    allowed = outputs_for(facts)
    head = network.graph.nodes[network.graph.head]
    measured, target = network.shapes[head.name], facts.target_shape
    outputs, loss = measured.outputs, network.loss.plugin
    if loss.is_first_party and (measured.several or facts.several_targets):
        came = f'the head "{head.name}" returns' if measured.several else "a sample's target is"
        message = f"{came} several tensors, or one in a tuple or a dictionary, and {loss} reads one"
        hint = (
            "write a loss of your own, which is called with what the network returned and with the targets: "
            '[loss] name = "my_losses:MyLoss", or loss={"name": MyLoss} in Python'
        )
        if measured.several:
            hint += "; or write a module around the network whose forward returns one tensor"
        yield Problem(message=message, hint=hint, path=head.path if measured.several else ("loss",))
        return
    if not allowed or measured.several or outputs[0] in allowed:
        return
    shapes = ", ".join("x".join(map(str, shape)) for shape in outputs)
    of_targets = f", and targets of {'x'.join(map(str, target))}" if target else ""
    message = f'the head "{head.name}" has {shapes} outputs, but the data set has {facts.classes} classes{of_targets}'
    hint = "make it " + " or ".join("x".join(map(str, shape)) for shape in allowed)
    yield Problem(message=message, hint=hint, path=head.path)
