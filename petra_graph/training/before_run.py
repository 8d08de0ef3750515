"""What other distributions try before a run trains, unless `run.self_check` is false.

They name functions (Prepared, StartReporter) -> Tried by entry points of the group `petra_graph.before_run`. That of
petra-graph-conformance sees whether head, loss, metrics and data fit, and asks plugins that are not this project's for their promises. All
of it runs on the CPU, before anything is written, and leaves every generator as it was, so that it changes no bit of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from attrs import field, frozen

from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.generators import fork_generators
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.registry.discovery import BEFORE_RUN, scan
from petra_graph.training.start_reporter import StartReporter

if TYPE_CHECKING:
    from petra_graph.training.prepared_run import Prepared


@frozen(kw_only=True)
class Tried:
    """What was tried.

    Attributes:
        doubts: warnings of what may be meant.
        verdicts: what was found, by plugin, for the run's record.
    """

    doubts: Sequence[str] = ()
    verdicts: Mapping[str, str] = field(factory=dict)


Hook = Callable[["Prepared", StartReporter], Tried]


def try_before_run(prepared: Prepared, reporter: StartReporter) -> Tried:
    """Call the hooks of all distributions.

    Raises:
        SpecError: the parts of the specification do not fit.
        PluginError: a plugin breaks its promises, or what tries it fails.
    """
    threads = torch.get_num_threads()
    with fork_generators(), uncompiled():
        try:
            tried = [hook(prepared, reporter) for hook in _hooks()]
        finally:
            torch.set_num_threads(threads)
    verdicts = {name: found for one in tried for name, found in one.verdicts.items()}
    return Tried(doubts=[doubt for one in tried for doubt in one.doubts], verdicts=verdicts)


def _hooks() -> Iterator[Hook]:
    for entry in sorted(scan()[0], key=lambda entry: (entry.distribution, entry.name)):
        if entry.group == BEFORE_RUN:
            with author_code(
                f"{entry.distribution} cannot try plugins before a run: {entry.target!r} cannot be imported"
            ):
                hook: Hook = entry.load()
            yield hook
