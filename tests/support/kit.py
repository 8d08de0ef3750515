"""All promises of a trial at once, for tests of plugins and of the kit itself."""

from __future__ import annotations

import sys
from collections.abc import Collection

from petra_graph_conformance.all_checks import CHECKS, checks_of
from petra_graph_conformance.examined_promises import check_promise, examine
from petra_graph_conformance.plugin_trial import AnyTrial
from petra_graph_conformance.promise_report import Report

PROMISES = {checks.kind.noun: tuple(promise.name for promise in checks.asked("kit")) for checks in CHECKS}
"""The names of the promises of every kind, in the order in which they are checked."""


def kept(trial: AnyTrial, leave_out: Collection[str] = ()) -> Report:
    """Return the report of a plugin that keeps its promises, but for those that are left out.

    Raises:
        AssertionError: with the broken promises, by how much, and what to do.
    """
    report = examine(trial, leave_out=leave_out)
    if not report.kept:
        raise AssertionError(str(report))
    return report


def ask(trial: AnyTrial, name: str) -> None:
    """Check one promise of a trial by its name."""
    (promise,) = (one for one in checks_of(trial.kind).asked("kit") if one.name == name)
    check_promise(trial, promise)


def importable(module: str) -> str:
    """Return a name under which locations can name a test's module: pytest calls it after its folder, which has hyphens."""
    name = module.rpartition(".")[2]
    sys.modules[name] = sys.modules[module]
    return name
