"""What is asked of the plugins of each kind: of the core's, and of kinds that other packages add.

A package that adds a kind names its `KindChecks` by an entry point of the group `petra_graph_conformance.kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from petra_graph.errors import PluginError
from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.plugin import Plugin
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.registry.discovery import scan
from petra_graph_conformance.declaration_promises import DECLARATION, PACKAGE
from petra_graph_conformance.kinds.architecture import ARCHITECTURE_CHECKS
from petra_graph_conformance.kinds.block import BLOCK_CHECKS
from petra_graph_conformance.kinds.callback import CALLBACK_CHECKS
from petra_graph_conformance.kinds.data_set import DATA_SET_CHECKS
from petra_graph_conformance.kinds.logger import LOGGER_CHECKS
from petra_graph_conformance.kinds.loss import LOSS_CHECKS
from petra_graph_conformance.kinds.lr_schedule import LR_SCHEDULE_CHECKS
from petra_graph_conformance.kinds.metric import METRIC_CHECKS
from petra_graph_conformance.kinds.optimizer import OPTIMIZER_CHECKS
from petra_graph_conformance.plugin_trial import PluginTrial
from petra_graph_conformance.promise import KindChecks

CHECKS = (
    BLOCK_CHECKS,
    ARCHITECTURE_CHECKS,
    OPTIMIZER_CHECKS,
    LR_SCHEDULE_CHECKS,
    LOSS_CHECKS,
    METRIC_CHECKS,
    DATA_SET_CHECKS,
    LOGGER_CHECKS,
    CALLBACK_CHECKS,
)
"""Those of the core's kinds, in the order of lists and of the guide."""
GROUP = "petra_graph_conformance.kinds"


def checks_of(kind: PluginKind) -> KindChecks:
    """Return what is asked of the plugins of a kind; the declaration alone, if no package says more.

    Raises:
        PluginError: checks that a package names cannot be loaded.
    """
    for own in CHECKS:
        if own.kind is kind:
            return own
    for entry in scan()[0]:
        if entry.group != GROUP:
            continue
        what = f"the checks {entry.name!r} of {entry.distribution}"
        with author_code(f"{what} cannot be loaded from {entry.target!r}"):
            checks = entry.load()
        if not isinstance(checks, KindChecks):
            raise PluginError(f"{what} are {type(checks).__name__}, not KindChecks")
        if checks.kind is kind:
            return checks
    return KindChecks(kind=kind, promises=(DECLARATION, PACKAGE), trial=PluginTrial, trials=_trial)


def _trial(plugin: Plugin, options: Any, _: Mapping[str, Any]) -> Sequence[PluginTrial]:
    return [PluginTrial(plugin=plugin, options=options)]
