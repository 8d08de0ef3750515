"""The measure step: a checked specification with the shapes of its nodes, what these rule out, and their costs, once a later step asks.

A stage updates its parameters at its own times. So nodes that share a trained parameter are in one stage, with all nodes between them, or
`partition.untie` gives each stage a copy. Frozen parameters are never updated, so stages may have copies of them. Embedding and head of a chain are
thus in one stage in a cut into one stage alone: a stage has one depth, and with both ends of a longer pipeline it would wait for its own output.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, field, frozen

from petra_graph.compiler.lower import Lowering, MessageTypes
from petra_graph.compiler.memory import transport_of
from petra_graph.compiler.plan import PlannedNode
from petra_graph.compiler.planner_inputs import PlannerInputs, clocks_of
from petra_graph.compiler.spec_checks import refuse
from petra_graph.errors import Problem, SpecError, at_path, shown
from petra_graph.graph.node_graph import INPUT, NodeGraph
from petra_graph.measure.nodes import Memo, NodeParameter, NodeShapes, listing, measure_shapes
from petra_graph.planning.check_spec import CheckedSpec, ProblemCollector
from petra_graph.plugins.data_set import DataFacts
from petra_graph.program.device_types import Device, DeviceType, stated_link
from petra_graph.program.node_costs import PROFILED, CostTable, Profile
from petra_graph.program.schedule import Policy
from petra_graph.program.stage_program import StageProgram
from petra_graph.record.run_directory import environment, write_output
from petra_graph.record.weights import SEPARATOR, is_named
from petra_graph.spec.model import Spec
from petra_graph.units import listed


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
        found: dict[str, dict[str, bool]] = {}
        for name in names:
            for one in self.shapes[name].named.values():
                if one.label:
                    found.setdefault(one.label, {})[name] = one.trained
        return {label: [*own] for label, own in found.items() if len(own) > 1 and (any(own.values()) or not trained)}

    @property
    def bound(self) -> Mapping[str, Sequence[str]]:
        """The trained parameters that nodes share, with these nodes, which are in one stage of every cut."""
        return {} if self.spec.partition.untie else self.owners(self.graph.order, trained=True)

    def shared_in_stages(self, stages: Sequence[Sequence[str]] | None) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the shared parameters with nodes that have them and are in one stage, as far as that is known: without stages, these are still to be cut."""
        bound = self.bound
        yield from bound.items()
        for names in stages or ([self.graph.order] if self.spec.partition.stages == 1 else []):
            inside = self.owners(name for name in self.graph.order if name in names)
            yield from ((label, owners) for label, owners in inside.items() if label not in bound)

    def count_parameters(self, stages: Iterable[Sequence[str]] | None = None) -> tuple[int, int]:
        """Return how many values the parameters have, and how many of them are trained; a shared one counts once a stage, or once without stages."""
        every = trained = 0
        for names in [self.graph.order] if stages is None else stages:
            found: dict[object, list[NodeParameter]] = {}
            for name in names:
                for key, one in self.shapes[name].named.items():
                    found.setdefault(one.label or (name, key), []).append(one)
            every += sum(own[0].values for own in found.values())
            trained += sum(own[0].values for own in found.values() if any(one.trained for one in own))
        return every, trained

    def check_shared(self, stages: Sequence[Sequence[str]] | int) -> None:
        """Check that nodes which share a parameter are in one stage, or can be in a cut into a number of stages; SpecError: they are not."""
        bound, begin = self.bound, ""
        most = self.graph.most_stages(self.graph.inseparable(bound.values()))
        if isinstance(stages, int):
            begin, apart = f"{stages} stages are too many: ", bound if stages > most else {}
        else:
            stage_of = {name: number for number, names in enumerate(stages) for name in names}
            apart = {label: own for label, own in bound.items() if len({stage_of[name] for name in own}) > 1}
        hint = (
            f"set partition.stages = {most}, the most that there can be: a stage with these nodes has all nodes between them, too; or set "
            "partition.untie = true: each stage then updates a copy of its own, equal at the start, which is another model than the tied one"
        )
        named = {label: " and ".join(f'"{name}"' for name in own) for label, own in apart.items()}
        refuse(
            Problem(
                message=f"{begin}nodes {nodes} share the parameter {label}", hint=hint, path=("partition", "stages")
            )
            for label, nodes in named.items()
        )

    def described(self, programs: Iterable[StageProgram]) -> tuple[PlannedNode, ...]:
        """Return the nodes of stages as a plan has them."""
        return tuple(
            PlannedNode(
                name=name,
                kind=(node := self.graph.nodes[name]).kind,
                block=node.block,
                stage=program.index,
                parameters=self.shapes[name].parameters,
                keeps=None if segment.kind == "head" else segment.keeps,
                inputs=tuple(producer for producer in node.inputs if producer != INPUT),
                outputs=self.shapes[name].outputs,
            )
            for program in programs
            for segment in program.segments
            for name in segment.nodes
        )

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
        """What the seconds of operations depend on, as JSON, beside the network; a profile must have been taken with the same."""
        spec, checked = self.spec, self.checked
        precision = asdict(spec.precision, filter=lambda key, _: key.name not in {"channel_dtype", "fp32_precision"})
        return {
            "precision": precision | {"tf32": spec.precision.products == "tf32"},
            "optimizer": [checked.optimizer.name, spec.optimizer.clip and spec.optimizer.clip.by],
            "loss": checked.loss.name,
            "run.compile": spec.run.compile,
            "init.freeze": [*spec.init.freeze] if spec.init.freeze else None,
        }

    def costs(self) -> CostTable:
        """Return what nodes cost, measured once for each set of kinds, micro-batch, precision and clipping; errors as of `measure_costs`."""
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
        """Return the inputs of placement and prediction; this measures costs, which a step asks for only where they decide something.

        Errors are those of `costs`, and SpecError: the profile does not belong to the specification.
        """
        spec, kind, costs, given = self.spec, devices[0].type.kind, self.costs(), self.checked.stages
        profile = checked_profile(spec, costs, self.settings, devices[0].type)
        costs = costs.counted_once(
            self.shared_in_stages(None if given is None else [stage.nodes for stage in given.stages])
        )
        if profile is not None:
            costs = costs.with_workspaces(profile.workspace)
            if (link := profile.link) is not None:
                devices = tuple(evolve(device, link=stated_link(spec.partition, link)) for device in devices)
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


def policy_of(spec: Spec, kind: str) -> Policy:
    """Return the order in which a process on devices of a kind begins operations; on a GPU in one order."""
    if spec.run.scheduling != "auto":
        return spec.run.scheduling
    return "static" if kind == "cuda" else "arrival"


def measure(checked: CheckedSpec) -> MeasuredNetwork:
    """Measure the shapes of every node; errors as of `measure_shapes`, and SpecError: what is to be frozen cannot be."""
    shapes = measure_shapes(checked.graph, checked.facts)
    if patterns := checked.spec.init.freeze:
        refuse(_freeze_problems(shapes, patterns))
    return MeasuredNetwork(checked=checked, shapes=shapes)


def check_network(checked: CheckedSpec) -> MeasuredNetwork:
    """Measure the shapes of every node, and build loss, optimizer and metrics; SpecError, PluginError: everything that is wrong, located."""
    problems = ProblemCollector(loaded=checked.loaded)
    for build in (checked.loss.build, lambda: checked.tried_optimizer, *(one.build for one in checked.metrics)):
        problems.attempt(build)
    network = problems.require(measure, checked)
    problems.add(head_problems(network, checked.facts))
    problems.raise_any()
    return network


def _freeze_problems(shapes: Mapping[str, NodeShapes], patterns: Iterable[str]) -> Iterator[Problem]:
    """Yield patterns of `init.freeze` that name nothing, parameters that are frozen in one of their nodes alone, and that nothing is left."""
    every = {f"{node}{SEPARATOR}{key}": one for node, shape in shapes.items() for key, one in shape.named.items()}
    trained = {one.label for one in every.values() if one.trained}
    found = [
        (f"{pattern!r} names no parameter of the network", f"name nodes or parameters: {listed(every, 8)}")
        for pattern in patterns
        if not any(is_named([pattern], name) for name in every)
    ]
    found += [
        (f"{label} is one parameter of several nodes: freeze it in all of them", "")
        for label in dict.fromkeys(one.label for one in every.values() if one.label and not one.trained)
        if label in trained
    ]
    if not trained:
        found.append(("nothing of the network would be trained", "freeze less"))
    for message, hint in found:
        yield Problem(message=message, hint=hint, path=("init", "freeze"))


def head_problems(network: MeasuredNetwork, facts: DataFacts) -> Iterator[Problem]:
    """Yield the problem of a head without an output for each class; or of several tensors, where the loss is of the first party, which reads one.

    With several targets a sample, the classes are a dimension before or behind theirs, as the loss reads them.
    """
    head, loss = network.graph.nodes[network.graph.head], network.checked.loss
    measured, target = network.shapes[head.name], facts.target_shape
    if loss.is_first_party and (measured.several or facts.several_targets):
        came = f'the head "{head.name}" returns' if measured.several else "a sample's target is"
        message = f"{came} several tensors, or one in a tuple or a dictionary, and {loss} reads one"
        hint = (
            "write a loss of your own, which is called with what the network returned and with the targets: "
            '[loss] name = "my_losses:MyLoss", or loss={"name": MyLoss} in Python'
        )
        yield Problem(message=message, hint=hint, path=head.path if measured.several else ("loss",))
    elif facts.classes is not None and facts.target_dtype == "int64" and not measured.several:
        allowed = list(dict.fromkeys([(facts.classes, *target), (*target, facts.classes)]))
        if measured.outputs[0] not in allowed:
            of_targets = f", and targets of {listing([target])}" if target else ""
            message = f'the head "{head.name}" has {listing(measured.outputs)} outputs, but the data set has {facts.classes} classes{of_targets}'
            hint = "make it " + " or ".join(listing([one]) for one in allowed)
            yield Problem(message=message, hint=hint, path=head.path)


# --- profiles as files, and whether one is of the network, the settings and the device that are planned ---

FORMAT = 4
_REMEDY = "`petra-graph profile SPEC --output FILE`"
_PATH = ("partition", "profile")


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile, with the environment that it was measured in; raise RunFailed if the disk refuses."""
    values = {"format": FORMAT, **asdict(profile), "environment": environment()}
    write_output(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def _read(path: Path) -> Profile:
    from cattrs import Converter  # takes longer to import than most plans without a profile to be made

    try:
        values = json.loads(path.read_bytes())
        if (found := values["format"]) == FORMAT:
            return Converter(detailed_validation=False).structure(values, Profile)
    except OSError as error:
        raise SpecError(f"cannot read the profile {path}: {error.strerror or error}") from None
    except Exception:  # noqa: BLE001  cattrs raises many kinds, some of them Exception itself
        raise SpecError(f"{path} is not a profile", f"{_REMEDY} writes one") from None
    message = f"{path} is a profile of format {shown(found)}, and this petra-graph reads format {FORMAT}"
    raise SpecError(message, f"{_REMEDY} measures it again")


def checked_profile(spec: Spec, costs: CostTable, settings: Mapping[str, Any], device: DeviceType) -> Profile | None:
    """Read the profile that a specification names; None where it names none.

    `settings` are those of `MeasuredNetwork`, `device` is the type of the first one. SpecError: the profile cannot be read, or is of something else.
    """
    if spec.partition.profile is None:
        return None
    with at_path(*_PATH):
        profile = _read(Path(spec.partition.profile).expanduser())
    compared: dict[str, tuple[Any, Any]] = {
        "micro-batches of": (profile.micro_batch, spec.data.batch),
        "run.threads =": (profile.threads, spec.run.threads),
        "a device of kind": (profile.kind, device.kind),
    }
    if profile.kind == device.kind:
        compared["a device of type"] = profile.device_type, device.name
    for table in dict.fromkeys((*settings, *profile.settings)):
        compared[f"[{table}] ="] = profile.settings.get(table), settings.get(table)
    said = [
        f"the profile is of {what} {shown(one)}, not {shown(own)}"
        for what, (one, own) in compared.items()
        if one != own
    ]
    for name, cost in costs.nodes.items():
        if name not in profile.nodes:
            said.append(f"the profile has no node {shown(name)}")
        elif profile.sizes.get(name) != (cost.parameters, sum(cost.output_bytes)):
            said.append(f"the profile's node {shown(name)} has other sizes than the network's")
        elif missing := PROFILED[cost.kind].keys() - profile.nodes[name].keys():  # their seconds would be none
            said.append(f"the profile has not timed {', '.join(sorted(missing))} of node {shown(name)}")
    if said:
        hint = "take one of this specification, on such a device: petra-graph profile SPEC"
        raise SpecError(Problem(message=text, hint=hint, path=_PATH) for text in said)
    return profile
