"""The installed plugins: broken ones, their code among it, names that several distributions have, groups that do not exist, packages that are missing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata

from petra_graph_conformance.importers_of_torch import NO_TORCH_REMEDY

from petra_graph.errors import PetraGraphError, Problem, shown
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.plugin import FIRST_PARTY, load
from petra_graph.registry.registry import Registry
from petra_graph.units import plural
from petra_graph_authoring.doctor.environment_findings import Finding, unmet
from petra_graph_authoring.survey_of_plugins import PluginSummary, list_groups

finding = partial(Finding, area="plugins")


def examine_plugins(
    registry: Registry, listed: Callable[[Registry, Sequence[str]], Sequence[PluginSummary]] = list_groups
) -> Iterator[Finding]:
    """Yield the findings, those of distributions first.

    Args:
        registry: the installed plugins.
        listed: imports the plugins of groups, as `petra-graph list` does.
    """
    for name in sorted({entry.distribution for entry in registry.entries} | {FIRST_PARTY}):
        yield _examine_distribution(registry, name)
    for name in registry.unreadable:
        yield finding(name, "broken", "its entry points cannot be read", remedy="reinstall it, or remove it")
    for entry, problem in registry.misplaced:
        yield finding(entry.distribution, "broken", problem.message, remedy=problem.hint)
    for problem in registry.broken_kinds:
        yield finding("kinds", "broken", problem.message, remedy=problem.hint)
    yield from _find_names_of_several(registry)
    for summary in listed(registry, [kind.short for kind in registry.kinds]):
        name = f"{summary.group}/{summary.name}"
        if summary.fault:
            again = f"install {summary.distribution} again if its entry points have changed; otherwise report it to its author, or remove it"
            yield finding(
                name, "broken", summary.fault, remedy=summary.remedy or (again if summary.distribution else "")
            )
        elif summary.imports_torch:
            text = f"importing its declaration imports torch, in {summary.imports_torch}: `validate` and `list` wait for it"
            yield finding(name, "warning", text, remedy=NO_TORCH_REMEDY)
        for problem in () if summary.fault else _code_problems(registry, summary):
            yield finding(name, "broken", problem.message, remedy=problem.hint)


def _examine_distribution(registry: Registry, name: str) -> Finding:
    """Return how many plugins a distribution has, and which packages it lacks."""
    groups = {kind.group for kind in registry.kinds}
    count = sum(entry.distribution == name and entry.group in groups for entry in registry.entries)
    if not count and name == FIRST_PARTY:
        remedy = "pip install petra-graph, or pip install -e . in its folder"
        return finding(name, "broken", "its own plugins are not found", remedy=remedy)
    version, requirements = "?", list[str]()
    with suppress(Exception):  # metadata of another package may be anything
        version = metadata.version(name)
        requirements = metadata.requires(name) or []
    lacking = [] if name == FIRST_PARTY else list(unmet(requirements))
    needs = [f"{needed.name}{needed.specifier} is needed ({here or 'not installed'})" for needed, here in lacking]
    asked = " ".join(f"'{needed.name}{needed.specifier}'" for needed, _ in lacking)
    return finding(
        name,
        "broken" if lacking else "ok",
        "; ".join([f"{version}, {plural(count, 'plugin')}", *needs]),
        remedy=f"pip install {asked}" if lacking else "",
    )


def _code_problems(registry: Registry, summary: PluginSummary) -> Sequence[Problem]:
    """Import the code of another's plugin, as a run does, and return what is wrong with it; nothing if torch cannot be imported."""
    if "torch" not in sys.modules and "torch._C" in sys.modules:
        return ()  # its import has failed, which is said, and a second one ends the process
    try:
        plugin = registry.resolve(registry.kind(summary.group), summary.name)
        code = None if plugin.is_first_party else load(plugin)
    except PetraGraphError as error:
        return error.problems
    if code is None or not isinstance(declaration := plugin.declaration, BlockDeclaration):
        return ()
    from petra_graph.measure.build_block import class_fault  # it imports torch, which the code has done

    kind = declaration.kind
    fault = class_fault(code, kind, declaration.build, f"its declaration says kind = {shown(kind)}")
    return [Problem(message=f"{plugin.owned}: {fault[0]}", hint=fault[1])] if fault is not None else ()


def _find_names_of_several(registry: Registry) -> Iterator[Finding]:
    for kind in registry.kinds:
        entries = [entry for entry in registry.entries if entry.group == kind.group]
        for name, count in Counter(entry.name for entry in entries).items():
            if count == 1:
                continue
            owners = sorted(entry.distribution for entry in entries if entry.name == name)
            names = " or ".join(shown(f"{owner}:{name}") for owner in dict.fromkeys(owners))
            yield finding(
                f"{kind.short}/{name}",
                "warning",
                f"{kind.noun} {shown(name)} is in {' and '.join(owners)}: a spec that writes it is refused",
                remedy=f"write {names} in specs" if len(set(owners)) > 1 else "its author must rename one of them",
            )
