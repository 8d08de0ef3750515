"""What a run tries before it trains: plugins of other packages than petra-graph, if it has any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from petra_graph.training.prepared_run import Prepared
    from petra_graph.training.start_reporter import StartReporter


def before_run(prepared: Prepared, reporter: StartReporter) -> Sequence[str]:
    """Try them, and return warnings of what may be meant.

    Raises:
        PluginError: a plugin breaks its promises, or the data set raised, or returned what it does not declare.
    """
    if all(plugin.is_first_party for plugin in prepared.checked.plugins):
        return ()
    from petra_graph_conformance.self_check import SelfCheck

    return SelfCheck.of(prepared, reporter).run()
