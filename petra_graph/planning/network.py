"""The measure step: a checked specification with the shapes of its nodes, what these rule out, and their costs, once a later step asks.

Neither the data set's files nor the devices are needed.

A stage updates its parameters at its own times. So nodes that share a trained parameter are in one stage, with all nodes between them, or
`partition.untie` gives each stage a copy. Frozen parameters are never updated, so stages may have copies of them.

Decision: embedding and head of a chain are in one stage in a cut into one stage alone. A stage has one depth, and one forward for each
micro-batch: with both ends of a longer pipeline it would wait for its own output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, field, frozen

from petra_graph.compiler.lower import Lowering, MessageTypes
from petra_graph.compiler.memory import transport_of
from petra_graph.compiler.planner_inputs import PlannerInputs, clocks_of
from petra_graph.compiler.spec_checks import checked_profile, refuse
from petra_graph.errors import Problem, at_path
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.measure.build_block import listing
from petra_graph.measure.node_shapes import Memo, NodeShapes, measure_shapes
from petra_graph.planning.check_spec import CheckedSpec, ProblemCollector
from petra_graph.plugins.data_set import DataFacts
from petra_graph.program.device_types import Device, stated_link
from petra_graph.program.node_costs import CostTable
from petra_graph.program.schedule import Policy
from petra_graph.record.weights import SEPARATOR, is_named
from petra_graph.spec.model import Spec
from petra_graph.units import listed, noun

Stages = Iterable[Sequence[str]]
"""The nodes of each stage."""


@frozen(kw_only=True)
class MeasuredNetwork:
    """The network of a specification."""

    checked: CheckedSpec
    shapes: Mapping[str, NodeShapes]
    """By node."""
    known_costs: Memo[CostTable] = field(factory=Memo)
    """Of this network and its variants."""

    @property
    def spec(self) -> Spec:
        return self.checked.spec

    @property
    def graph(self) -> NodeGraph:
        return self.checked.graph

    def variant(self, spec: Spec) -> MeasuredNetwork:
        """Return the same network under another specification; errors as of `CheckedSpec.variant`."""
        return evolve(self, checked=self.checked.variant(spec))

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches of an epoch; None where the number of samples is not known."""
        if (samples := self.checked.training_samples) is None:
            return None
        whole, most = samples // (self.spec.data.batch * self.spec.partition.replicas), self.spec.run.micro_batches
        return whole if most is None else min(whole, most)

    # --- parameters that several nodes share ---

    def owners(self, names: Iterable[str], *, trained: bool = False) -> Mapping[str, Sequence[str]]:
        """Return which of some nodes have each shared parameter, where several have; with `trained`, of those that one of them trains."""
        found: dict[str, list[str]] = {}
        moved: set[str] = set()
        for name in names:
            for one in self.shapes[name].shared.values():
                found.setdefault(one.label, []).append(name)
                moved |= {one.label} if one.trained else set()
        nodes = {label: [*dict.fromkeys(owners)] for label, owners in found.items()}
        return {label: own for label, own in nodes.items() if len(own) > 1 and (label in moved or not trained)}

    @property
    def bound(self) -> Mapping[str, Sequence[str]]:
        """The trained parameters that nodes share, with these nodes, which are in one stage of every cut."""
        return {} if self.spec.partition.untie else self.owners(self.graph.order, trained=True)

    def shared_in_stages(self, stages: Sequence[Sequence[str]] | None) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the shared parameters by their names, with nodes that have them and are known to be in one stage.

        Args:
            stages: those that are given; None: they are still to be cut.
        """
        bound = self.bound
        yield from bound.items()
        for names in stages or ([self.graph.order] if self.spec.partition.stages == 1 else []):
            inside = self.owners(name for name in self.graph.order if name in names)
            yield from ((label, owners) for label, owners in inside.items() if label not in bound)

    def count_parameters(self, stages: Stages | None = None) -> tuple[int, int]:
        """Return how many values the parameters have, and how many of them are trained; a shared one counts once a stage, or once without stages."""
        every = trained = 0
        for names in [self.graph.order] if stages is None else stages:
            every += sum(self.shapes[name].parameters for name in names)
            trained += sum(sum(self.shapes[name].trained.values()) for name in names)
            for label, owners in self.owners(names).items():
                own = [one for name in owners for one in self.shapes[name].shared.values() if one.label == label]
                every -= sum(one.values for one in own[1:])
                trained -= sum([one.values for one in own if one.trained][1:])
        return every, trained

    def across_stages(self, stages: Stages) -> Iterator[str]:
        """Yield a sentence for each parameter that nodes of several stages share and one of them trains."""
        stage_of = {name: number for number, names in enumerate(stages, start=1) for name in names}
        for label, owners in self.owners(stage_of, trained=True).items():
            first: dict[int, str] = {}
            for name in owners:
                first.setdefault(stage_of[name], name)
            if len(first) > 1:
                numbers = " and ".join(map(str, first))
                yield f"{_named(first.values())} share the parameter {label}, and are in {noun(len(first), 'stage')} {numbers}"

    def check_shared(self, stages: Stages | int) -> None:
        """Check that nodes which share a parameter are in one stage, or can be in a cut into a number of stages.

        Raises:
            SpecError: they are in several, and `partition.untie` is not set.
        """
        bound, found = self.bound, list[str]()
        most = self.graph.most_stages(self.graph.inseparable(bound.values()))
        if not isinstance(stages, int):
            found += self.across_stages(stages) if bound else ()
        elif stages > most:
            found += [
                f"{stages} stages are too many: {_named(own)} share the parameter {one}" for one, own in bound.items()
            ]
        hint = (
            f"set partition.stages = {most}, the most that there can be: a stage with these nodes has all nodes between them, too; or set "
            "partition.untie = true: each stage then updates a copy of its own, equal at the start, which is another model than the tied one"
        )
        refuse(Problem(message=text, hint=hint, path=("partition", "stages")) for text in found)

    # --- programs and costs ---

    @property
    def lowering(self) -> Lowering:
        """What makes the programs of stages: the lower step."""
        spec, method = self.spec, self.spec.method
        return Lowering(
            graph=self.graph,
            method=self.checked.method,
            accumulation=method.accumulation,
            messages=MessageTypes(
                streams={name: node.streams for name, node in self.shapes.items()},
                inputs=len(self.checked.facts.inputs),
                precision=spec.precision,
                batch=spec.data.batch,
                evaluation_batch=spec.data.test_batch,
            ),
            kept=method.keep if isinstance(method.keep, Mapping) else {},
            allow_stored=method.allow_stored,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The tables on which the seconds of operations depend, as JSON, beside the network; a profile must have been taken with equal ones.

        Of a number only counts whether it is zero: other values take the same operations.
        """

        def zero_or_not(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [zero_or_not(one) for one in value]
            return value != 0 if isinstance(value, int | float) else value

        spec, optimizer = self.spec, self.checked.optimizer
        precision = asdict(spec.precision, filter=lambda key, _: key.name not in {"channel_dtype", "fp32_precision"})
        return {
            "precision": precision | {"tf32": spec.precision.products == "tf32"},
            "optimizer": {
                "name": optimizer.name,
                "options": {key: zero_or_not(value) for key, value in asdict(optimizer.options).items() if key != "lr"},
                "clip": None if spec.optimizer.clip is None else spec.optimizer.clip.by,
            },
            "loss": self.checked.loss.name,
            "run.compile": spec.run.compile,
            "init.freeze": [*spec.init.freeze] if spec.init.freeze else None,
        }

    def costs(self) -> CostTable:
        """Return what nodes cost, measured once for each set of kinds, micro-batch, precision and clipping.

        A step calls it only where costs decide something.

        Raises:
            SpecError: a block can be run neither without values nor on the CPU.
            PluginError: code cannot be imported.
        """
        from petra_graph.measure.costs import Conditions, measure_costs

        spec, checked = self.spec, self.checked

        def measured() -> CostTable:
            conditions = Conditions(
                batch=spec.data.batch,
                facts=checked.facts,
                precision=spec.precision,
                loss=checked.loss.build(),
                optimizer=checked.optimizer,
                clip=spec.optimizer.clip,
            )
            with at_path("loss", "name"):  # blocks and optimizers have paths of their own
                return measure_costs(self.graph, conditions)

        kinds = [node.kind for node in self.graph.nodes.values()]
        return self.known_costs.get((kinds, spec.data.batch, spec.precision, spec.optimizer.clip), measured)

    def planner_inputs(self, devices: tuple[Device, ...]) -> PlannerInputs:
        """Return the inputs of placement and prediction; this measures costs.

        Raises:
            SpecError: a block cannot be run, or the profile does not belong to the specification.
            PluginError: code cannot be imported.
        """
        spec, kind, costs = self.spec, devices[0].type.kind, self.costs()
        profile = checked_profile(spec, self.graph, costs, self.settings, devices[0].type)
        given = self.checked.stages
        stages = None if given is None else [stage.nodes for stage in given.stages]
        costs = costs.counted_once(self.shared_in_stages(stages))
        if profile is not None:
            costs = costs.with_workspaces(profile.workspace)
        if profile is not None and profile.link is not None:
            devices = tuple(evolve(device, link=stated_link(spec.partition, profile.link)) for device in devices)
        return PlannerInputs(
            **asdict(self.lowering, recurse=False),
            costs=costs,
            schedule=self.checked.schedule,
            transport=transport_of(spec.precision, kind),
            devices=devices,
            policy=policy_of(spec, kind),
            clocks=clocks_of(devices, costs, spec.precision.products, profile),
            profile=profile,
            replicas=spec.partition.replicas,
            together=self.graph.inseparable(self.bound.values()),
            outside_seconds=0.0 if profile is None else profile.outside,
        )


def _named(names: Iterable[str]) -> str:
    return "nodes " + " and ".join(f'"{name}"' for name in names)


def policy_of(spec: Spec, kind: str) -> Policy:
    """Return the order in which a process begins operations; on a GPU in one order.

    Args:
        kind: kind of the devices, "cpu" or "cuda".
    """
    if spec.run.scheduling != "auto":
        return spec.run.scheduling
    return "static" if kind == "cuda" else "arrival"


def measure(checked: CheckedSpec) -> MeasuredNetwork:
    """Measure the shapes of every node.

    Raises:
        SpecError: a block refuses its input, or what is to be frozen cannot be.
        PluginError: code cannot be imported, or has failed.
    """
    shapes = measure_shapes(checked.graph, checked.facts)
    if patterns := checked.spec.init.freeze:
        refuse(_freeze_problems(shapes, patterns))
    return MeasuredNetwork(checked=checked, shapes=shapes)


def check_network(checked: CheckedSpec) -> MeasuredNetwork:
    """Measure the shapes of every node, build the loss, the optimizer and the metrics, and locate everything that is wrong.

    Raises:
        SpecError, PluginError: as `measure`, one of them refuses its options, or the head does not fit the data.
    """
    problems = ProblemCollector(loaded=checked.loaded)
    problems.attempt(checked.loss.build)
    problems.attempt(lambda: checked.tried_optimizer)
    for metric in checked.metrics:
        problems.attempt(metric.build)
    network = problems.require(measure, checked)
    problems.add(head_problems(network, checked.facts))
    problems.raise_any()
    return network


def _freeze_problems(shapes: Mapping[str, NodeShapes], patterns: Iterable[str]) -> Iterator[Problem]:
    """Yield patterns of `init.freeze` that name nothing, parameters that are frozen in one of their nodes alone, and that nothing is left."""
    names = [f"{node}{SEPARATOR}{key}" for node, one in shapes.items() for key in (*one.frozen, *one.trained)]
    path = ("init", "freeze")
    for pattern in patterns:
        if not any(is_named([pattern], name) for name in names):
            hint = f"name nodes or parameters: {listed(names, 8)}"
            yield Problem(message=f"{pattern!r} names no parameter of the network", hint=hint, path=path)
    trained: dict[str, set[bool]] = {}
    for shared in (shared for one in shapes.values() for shared in one.shared.values()):
        trained.setdefault(shared.label, set()).add(shared.trained)
    for label, found in trained.items():
        if len(found) > 1:
            yield Problem(message=f"{label} is one parameter of several nodes: freeze it in all of them", path=path)
    if not any(one.trained for one in shapes.values()):
        yield Problem(message="nothing of the network would be trained", hint="freeze less", path=path)


def head_problems(network: MeasuredNetwork, facts: DataFacts) -> Iterator[Problem]:
    """Yield the problem of a head that does not have an output for each class, if targets are classes; of several tensors, if the loss is of the first party, which reads one.

    With several targets a sample, the classes are a dimension before or behind theirs, as the loss reads them.
    """
    head, loss = network.graph.nodes[network.graph.head], network.checked.loss
    measured, target = network.shapes[head.name], facts.target_shape
    if loss.is_first_party and (measured.several or facts.several_targets):
        came = f'the head "{head.name}" returns' if measured.several else "a sample's target is"
        yield Problem(
            message=f"{came} several tensors, or one in a tuple or a dictionary, and {loss} reads one",
            hint="write a loss of your own, which is called with what the network returned and with the targets: "
            '[loss] name = "my_losses:MyLoss", or loss={"name": MyLoss} in Python',
            path=head.path if measured.several else ("loss",),
        )
    elif facts.classes is not None and facts.target_dtype == "int64" and not measured.several:
        allowed = list(dict.fromkeys([(facts.classes, *target), (*target, facts.classes)]))
        if (outputs := measured.outputs)[0] not in allowed:
            of_targets = f", and targets of {listing([target])}" if target else ""
            message = f'the head "{head.name}" has {listing(outputs)} outputs, but the data set has {facts.classes} classes{of_targets}'
            yield Problem(
                message=message, hint="make it " + " or ".join(listing([one]) for one in allowed), path=head.path
            )
