"""A plan from a specification alone: no device, no data files, nothing allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from attrs import evolve, frozen

from petra_graph.compiler.document import document
from petra_graph.compiler.prediction import Prediction
from petra_graph.errors import SpecError
from petra_graph.graph.node_graph import NodeGraph
from petra_graph.planning.check import check_spec
from petra_graph.planning.compiled import Compiled, compile_graph, message_types
from petra_graph.planning.inputs import planner_inputs_of, profile_of
from petra_graph.planning.measure import Costs
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.planning.warnings import warnings
from petra_graph.program.costs import CostTable
from petra_graph.program.devices import EFFICIENCY, Link
from petra_graph.program.plan_document import Document
from petra_graph.report.plan.document import read_document
from petra_graph.spec.model import Spec


@frozen(kw_only=True)
class Plan:
    """A checked specification, and what is predicted of it."""

    spec: Spec
    compiled: Compiled
    prediction: Prediction

    def document(self, *, with_timeline: bool, with_advice: bool = True) -> Document:
        """Return the plan as JSON.

        Args:
            with_timeline: list the first operations one by one.
            with_advice: say what to change, for which other plans are tried.
        """
        return document(
            self.spec.name,
            self.prediction,
            self.compiled.shapes,
            assumptions=_assumptions(self),
            warnings=warnings(self.prediction, self.spec) if with_advice else (),
            with_timeline=with_timeline,
        )


class Planner:
    """Plans of one specification: its costs are measured once, whatever is varied."""

    def __init__(self, path: str, overrides: Iterable[str] = (), *, overlap: bool = False) -> None:
        """Check the specification.

        Args:
            path: a TOML file, or "-" for the standard input.
            overrides: `--set` assignments, KEY=VALUE.
            overlap: devices run forwards and backwards on two streams.

        Raises:
            SpecError: the specification is wrong; all problems, located.
            PluginError: only plugins are at fault.
        """
        self.checked = check_spec(path, overrides, import_local=True)
        self.costs = Costs(self.checked)
        self._overlap = overlap

    @property
    def spec(self) -> Spec:
        """The specification as given."""
        return self.checked.spec

    def plan(self, spec: Spec | None = None) -> Plan:
        """Plan, with another specification of the same network if one is given.

        Raises:
            SpecError: shapes, stages, devices or method are wrong; located.
            PluginError: only blocks are at fault.
            NoFeasiblePlan: nothing found keeps the devices' memory limits.
        """
        chosen = spec or self.spec
        findings = ProblemCollector()
        made = findings.attempt(lambda: self._plan(chosen), (), inside=True)
        findings.raise_any(self.checked.loaded)
        assert made is not None
        return made

    def _plan(self, spec: Spec) -> Plan:
        checked = self.checked
        compiled = compile_graph(checked.graph, spec, checked.facts, self.costs, planned=True)
        return planned(spec, compiled, self.costs, overlap=self._overlap)


def planned(
    spec: Spec, compiled: Compiled, costs: Callable[[NodeGraph, Spec], CostTable], *, overlap: bool = False
) -> Plan:
    """Predict what was compiled: a plan's stages, or a run's.

    Raises:
        SpecError: the profile does not belong to the specification, or a block cannot be run.
    """
    setting = planner_inputs_of(
        compiled.graph,
        spec,
        (compiled.method, compiled.schedule),
        costs(compiled.graph, spec),
        messages=message_types(compiled.shapes, spec),
        devices=compiled.devices,
    )
    setting = evolve(setting, overlap=overlap)
    return Plan(
        spec=spec,
        compiled=compiled,
        prediction=Prediction(setting=setting, partition=compiled.hosts, schedule=compiled.schedule),
    )


def plan(path: str, overrides: Iterable[str] = (), *, overlap: bool = False) -> Plan:
    """Plan a specification; errors as `Planner`."""
    return Planner(path, overrides, overlap=overlap).plan()


def saved_or_planned(source: str, *, overlap: bool = False) -> Document:
    """Return the document of a plan that was saved as JSON, by itself or in a run's directory, or of a specification.

    Raises:
        SpecError: it is none of these.
    """
    path = Path(source)
    if path.is_dir():
        path /= "plan.json"
    if path.suffix != ".json":
        return plan(source, overlap=overlap).document(with_timeline=False)
    try:
        return read_document(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise SpecError(f"cannot read the plan {path}: {error.strerror or error}") from None


def _assumptions(made: Plan) -> Iterator[str]:
    """Say what the numbers rest on."""
    spec, setting = made.spec, made.prediction.setting
    profile = profile_of(spec)
    types = list(dict.fromkeys(device.type.name for device in setting.devices))
    if profile is None:
        yield (
            f"times are estimates: the data sheet of {' and '.join(types)}, of which kernels are taken to reach "
            f"{EFFICIENCY:.0%}, in arithmetic or in memory traffic; `petra-graph profile` times the real device"
        )
    else:
        threads = f"{profile.threads} thread{'s' if profile.threads > 1 else ''}"
        yield f"times are of a profile: {profile.device}, {threads}, every operation's median"
        if len(types) > 1:
            yield f"the profile is taken for {types[0]}; the others' times are scaled by the arithmetic of their data sheets"
        if setting.outside_seconds:
            yield (
                f"{1e3 * setting.outside_seconds:.3g} ms of a micro-batch, for loading and handing on, are in the first "
                "stage's forward and in no node's"
            )
    links = {link for pair, link in made.prediction.pipeline.links.items() if pair}
    if links:
        slowest = Link(
            latency_seconds=max(link.latency_seconds for link in links),
            bytes_per_second=min(link.bytes_per_second for link in links),
        )
        which = "between devices" if len(links) == 1 else "between devices, at worst"
        yield (
            f"{which}: {slowest.latency_seconds:.3g} s a message and {slowest.bytes_per_second:.3g} bytes/s each way, "
            "beside computation"
        )
    if setting.replicas > 1:
        yield (
            f"devices and bytes are those of one of {setting.replicas} pipelines, speed is of all; every update waits for a "
            "ring all-reduce of its stage's gradients, none of it hidden"
        )
        if spec.partition.sync_batch_norm:
            yield "what batch normalisations exchange between replicas is in neither bytes nor times"
    if made.compiled.guarantee:
        yield f"the cut: {made.compiled.guarantee}"
    if setting.transport.buffer == 0:
        yield "buffers wait in host memory, which is not counted; copies there and back are taken to hide behind computation"
    yield "memory is of tensors, every stage's at its own largest moment; a device's is the sum of its stages'"
    yield from setting.costs.assumptions
