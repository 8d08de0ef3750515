"""A correction of late gradients: the table `[optimizer.delay]`, and a wrapper around any optimizer, which is itself an optimizer.

Decision: the core has the table and the call, and no correction. The options, and what they compute, are those of petra-graph-delay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve, frozen

from petra_graph.errors import Path, Problem, SpecError
from petra_graph.kinds.declaration import Declaration
from petra_graph.kinds.plugin import Plugin, build_plugin
from petra_graph.kinds.plugin_kind import PluginKind, called
from petra_graph.kinds.stage_facts import StageFacts

DELAY: Path = ("optimizer", "delay")
"""The table; its plugin has the name of the last key."""


@frozen(kw_only=True)
class CorrectionDeclaration(Declaration):
    """A correction; `build` names a function (optimizer, options) -> torch.optim.Optimizer with the groups and the state of that one."""


@frozen
class Corrected:
    """The code of an optimizer with a correction around what it builds."""

    optimizer: Plugin
    correction: Plugin
    options: Any
    """Of the correction."""
    locate: Callable[[Problem], Problem]

    def __call__(self, groups: Any, options: Any, stage: StageFacts | None = None) -> Any:
        """Build both for a stage, the optimizer with options of its own."""
        built = build_plugin(self.optimizer, groups, options, stage=stage)
        try:
            return build_plugin(self.correction, built, self.options)
        except SpecError as error:
            problems = [evolve(problem, path=(*DELAY, *problem.path)) for problem in error.problems]
            raise SpecError(map(self.locate, problems)) from error


CORRECTION = PluginKind(
    noun="correction",
    group="petra_graph.corrections",
    declaration=CorrectionDeclaration,
    form=called(CorrectionDeclaration, "optimizer, options", "torch.optim.Optimizer"),
    options_last=True,
)
"""No author is asked for one, so it is not among `KINDS`."""
