"""What is tried before a run trains, unless `run.self_check` is false.

    the core                  whether loss, metrics and `checkpoint.best` fit the head's outputs and the data set's targets
    entry points of the       what other distributions try: functions (Prepared, StartReporter) -> Tried, which raise PluginError.
    group `petra_graph.       That of petra-graph-conformance asks plugins that are not this project's for their promises
    before_run`

All of it runs on the CPU, before anything is written, and leaves every generator as it was, so that it changes no bit of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from attrs import field, frozen

from petra_graph.kinds.author_code import author_code
from petra_graph.kinds.generators import as_they_were
from petra_graph.registry.discovery import BEFORE_RUN, scan
from petra_graph.training.head_and_targets import HeadAndTargets
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
    """Try what the core and other distributions try.

    Raises:
        SpecError: loss, metrics or `checkpoint.best` do not fit.
        PluginError: a plugin breaks its promises, or what tries it fails.
    """
    fit = HeadAndTargets(network=prepared.network, opened=prepared.opened, loss=prepared.training.loss)
    threads = torch.get_num_threads()
    tried: list[Tried] = []
    with as_they_were():
        try:
            fit.require_loss()
            fit.require_mixing()
            tried += [hook(prepared, reporter) for hook in _hooks()]
            with reporter.step("computing the loss and metrics of some targets", prepared.spec.run.watchdog):
                fit.require_metrics()
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
