"""A run asks the kit: all promises of the plugins that are not this project's, in this network's shapes, before it trains.

    blocks             the real shapes of their streams, one trial for nodes that are alike
    loss, metrics      outputs of the head's shape against real targets
    data set           the data set as the run has opened it
    lr schedule        the learning rates of the run, in its last stage and in its first
    optimizer          small parameters, among them those of this network
    callbacks, loggers what they declare and require: a rehearsal, as of `petra-graph check`, would act on the world
    others             as `petra-graph check` tries them

Each is asked once for each digest of code, options and shapes (`verdicts`), for `LIMIT_SECONDS` at most: what is left then is named, and no
later run waits for it. Of each plugin that breaks promises the first cause is one problem; what may be meant is a warning.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout

from attrs import evolve, field, frozen

from petra_graph.errors import PluginError, Problem, RunFailed, once_a_cause
from petra_graph.kinds.author_code import remedy
from petra_graph.kinds.plugin import Plugin
from petra_graph.training.before_run import Tried
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.start_reporter import StartReporter
from petra_graph.units import listed
from petra_graph_conformance.all_checks import checks_of
from petra_graph_conformance.blocks.learned_and_running_state import IN_A_FORWARD
from petra_graph_conformance.examined_promises import examine
from petra_graph_conformance.plugins_of_run import Asked, PluginsOfRun
from petra_graph_conformance.promise_report import Outcome
from petra_graph_conformance.verdicts import Verdict, code_in_use, digest_of, in_record

LIMIT_SECONDS = 20.0
"""For the promises of one plugin; one that has begun is asked to its end."""
_NODES = re.compile(r'^node ".*?"( and \d+ more)?: ')
"""How messages about blocks begin."""


@frozen(kw_only=True)
class RunCheck:
    """The plugins of a run, asked before it trains."""

    prepared: Prepared
    reporter: StartReporter
    _doubts: list[str] = field(factory=list, init=False)
    _verdicts: dict[str, Verdict] = field(factory=dict, init=False)

    def run(self) -> Tried:
        """Ask all plugins that are not this project's.

        Raises:
            PluginError: some break promises: one problem for each, with what was found and what to do; or the data set raised, or
                returned what it does not declare.
        """
        problems: list[Problem] = []
        new: list[str] = []
        begin, code = time.monotonic(), ""
        for asked in PluginsOfRun(prepared=self.prepared).every():
            code = code or code_in_use()  # of hundreds of files, which a run of first-party plugins does not read
            digest = digest_of(asked.plugin, code, *asked.how, asked.only)
            verdict = Verdict.read(digest)
            if verdict is None:
                new.append(asked.plugin.owned)
                try:
                    with self.reporter.step(
                        f"trying {asked.where}{asked.plugin.owned}", self.prepared.spec.run.watchdog
                    ):
                        verdict = self._ask(asked)
                except PluginError as error:
                    problems.extend(error.problems)
                    continue
                broken = [one for one in verdict.outcomes if one.status == "broken"]
                if broken:
                    problems.append(_problem(asked, broken))
                    continue
                verdict.write(digest)
            self._verdicts[f"{asked.where}{asked.plugin.owned}"] = verdict
            self._doubts.extend((*(_doubt(asked, one) for one in verdict.outcomes), *verdict.notes))
            if verdict.left:
                seconds = f"{verdict.seconds:.0f} s of checks"
                rest = f"`petra-graph check {asked.plugin.label if asked.plugin.distribution else asked.plugin.name}` asks all"
                self._doubts.append(
                    f"{asked.where}{asked.plugin.owned}: after {seconds}, {listed(verdict.left)} are not asked; {rest}"
                )
        if new and not problems:
            text = f"checked {listed(dict.fromkeys(new))} in {time.monotonic() - begin:.1f} s; it is not asked again until its code changes"
            self.reporter.say(text)
        if problems:
            raise PluginError(once_a_cause(problems, lambda one: _NODES.sub("", one.message)))
        return Tried(doubts=self._doubts, verdicts=in_record(self._verdicts))

    def _ask(self, asked: Asked) -> Verdict:
        begin, outcomes, kept, left = time.monotonic(), dict[str, Outcome](), set[str](), dict[str, None]()
        notes: list[str] = []
        with redirect_stdout(sys.stderr):  # results of a run go there
            try:
                trials = asked.trials()
                for trial in trials:
                    report = examine(trial, "run", only=asked.only, until=begin + LIMIT_SECONDS)
                    broken, note = asked.judged(trial, report.broken)
                    notes += [note] * bool(note)
                    if not note and not broken:
                        left |= dict.fromkeys(one.promise for one in report.outcomes if one.status == "not checked")
                    kept |= {one.promise for one in report.outcomes if one.status == "kept"}
                    for one in (*broken, *(() if note else report.doubtful)):
                        outcomes.setdefault(one.promise, one)
            except RunFailed as error:
                raise PluginError([evolve(one, path=("data", "name")) for one in error.problems]) from error
        found = tuple(outcomes.values())
        late = () if any(one.status == "broken" for one in found) or time.monotonic() - begin < LIMIT_SECONDS else left
        return Verdict(
            kept=len(kept - outcomes.keys()),
            seconds=time.monotonic() - begin,
            outcomes=found,
            left=tuple(late),
            notes=tuple(notes),
        )


def _problem(asked: Asked, broken: Sequence[Outcome]) -> Problem:
    """Return the problem of broken promises: the first cause, with the names of what follows from it."""
    cause, *others = sorted(broken, key=lambda one: _place(asked.plugin, one))
    more = f" (and with it: {', '.join(one.promise for one in others)})" if others else ""
    message = f"{asked.plugin.owned} breaks a promise ({cause.promise}): {cause.found}"
    if cause.found.startswith(("data set ", asked.plugin.owned)):  # an error of ours, which says all that
        message = cause.found
    return Problem(
        message=f"{asked.where}{message}{more}", hint=cause.remedy or remedy(asked.plugin.distribution), path=asked.path
    )


def _place(plugin: Plugin, outcome: Outcome) -> float:
    """Return a promise's place among causes: that of its kind's list, but for state that moves in any forward, which comes early."""
    names = [promise.name for promise in checks_of(plugin.kind).promises]
    if IN_A_FORWARD in outcome.found:
        return names.index("parameters") + 0.5
    return names.index(outcome.promise)


def _doubt(asked: Asked, outcome: Outcome) -> str:
    """Return the warning of what breaks a promise and may be meant."""
    return f"{asked.plugin.owned} ({outcome.promise}): {outcome.found}; unless that is meant, {outcome.remedy}"
