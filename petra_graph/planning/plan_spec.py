"""A plan from a specification alone: check, measure, place, predict."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from attrs import evolve

from petra_graph.compiler.plan import Plan
from petra_graph.errors import NoFeasiblePlan
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.network import MeasuredNetwork, head_problems, measure
from petra_graph.planning.place_network import place_network
from petra_graph.planning.predict_plan import predict
from petra_graph.planning.problem_collector import ProblemCollector
from petra_graph.planning.run_advice import delay_problems
from petra_graph.planning.share_devices import baseline, better_use, what_fits
from petra_graph.planning.spec_devices import planned_devices
from petra_graph.spec.load_spec import Given
from petra_graph.spec.model import Spec


class Planner:
    """Plans of one specification and its variants: the network is checked and measured once."""

    def __init__(self, given: Given, overrides: Iterable[str] = ()) -> None:
        """Check the specification.

        Args:
            given: a TOML file, or "-" for the standard input, or a specification made in code.
            overrides: `--set` assignments, KEY=VALUE.

        Raises:
            SpecError: the specification is wrong; all problems, located.
            PluginError: only plugins are at fault.
        """
        self.checked = check_spec(given, overrides)

    @property
    def spec(self) -> Spec:
        return self.checked.spec

    @uncompiled()
    def plan(self, variant: Spec | None = None, *, with_timeline: bool = False) -> Plan:
        """Plan the specification, or a variant with the same network.

        Raises:
            SpecError: shapes, stages, devices or method are wrong, or the optimizer is not for the method's backwards; located.
            PluginError: only blocks are at fault.
            NoFeasiblePlan: no placement keeps the devices' memory limits.
        """
        problems = ProblemCollector(loaded=self.checked.loaded)
        devices = problems.attempt(planned_devices, (variant or self.spec).partition)
        network = problems.attempt(lambda: self.network if variant is None else self.network.variant(variant))
        if network is not None:
            problems.add(head_problems(network, self.checked.facts))
        if devices is None or network is None:
            problems.fail()
        problems.raise_any()

        placement = problems.require(place_network, network, devices)
        problems.add(delay_problems(network, network.programs(placement)))
        problems.raise_any()
        return problems.require(predict, network, placement, with_timeline=with_timeline)

    def advised(self, *, with_timeline: bool = False) -> Plan:
        """Return the plan with its speed-up, and with a better use of the same devices as its first warning; errors as of `plan`.

        Where memory does not suffice, the error says what would fit.
        """
        try:
            plan = self.plan(with_timeline=with_timeline)
        except NoFeasiblePlan as error:
            hint = what_fits(self.spec, self.plan)
            raise NoFeasiblePlan(evolve(problem, hint=hint) for problem in error.problems) from None
        over, (better, looked_at) = baseline(self.spec, self.plan), better_use(self.spec, plan, self.plan)
        if over is not None:
            speedup = plan.timing.samples_per_second / over.samples_per_second
            plan = evolve(plan, timing=evolve(plan.timing, speedup=speedup, speedup_over=over.name))
        return evolve(plan, other_uses=looked_at, warnings=(*[better] * bool(better), *plan.warnings))

    @cached_property
    def network(self) -> MeasuredNetwork:
        return measure(self.checked)


def plan(given: Given, overrides: Iterable[str] = ()) -> Plan:
    """Plan a specification; errors as `Planner`."""
    return Planner(given, overrides).plan()
