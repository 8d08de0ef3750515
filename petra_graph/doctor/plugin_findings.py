"""The installed plugins: broken ones, names that several distributions have, groups that do not exist, code that is hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from petra_graph.doctor.environment_findings import unmet
from petra_graph.doctor.finding import Finding
from petra_graph.errors import shown
from petra_graph.kinds.plugin import FIRST_PARTY
from petra_graph.registry.discovery import NO_TORCH_REMEDY, canonical
from petra_graph.registry.registry import Registry
from petra_graph.registry.survey_of_plugins import PluginSummary, list_groups
from petra_graph.units import plural

finding = partial(Finding, area="plugins")
_LEFT_BESIDE_SOURCES = ".egg-info"
"""What setuptools writes next to sources, which are on Python's path where they are installed for editing."""


def examine_plugins(
    registry: Registry, listed: Callable[[Registry, Sequence[str]], Sequence[PluginSummary]] = list_groups
) -> Iterator[Finding]:
    """Yield the findings, those of distributions first.

    Args:
        registry: the installed plugins.
        listed: imports the plugins of groups, as `petra-graph list` does.
    """
    yield from _distributions(registry)
    for name in registry.unreadable:
        yield finding(name, "broken", "its entry points cannot be read", remedy="reinstall it, or remove it")
    for entry, problem in registry.misplaced:
        yield finding(entry.distribution, "broken", problem.message, remedy=problem.hint)
    for problem in registry.broken_kinds:
        yield finding("kinds", "broken", problem.message, remedy=problem.hint)
    yield from _taken(registry)
    for summary in listed(registry, [kind.short for kind in registry.kinds]):
        if summary.fault:
            remedy = summary.remedy or _remedy(summary.distribution)
            yield finding(f"{summary.group}/{summary.name}", "broken", summary.fault, remedy=remedy)
        elif summary.imports_torch:
            text = f"importing its declaration imports torch, in {summary.imports_torch}: `validate` and `list` wait for it"
            yield finding(f"{summary.group}/{summary.name}", "warning", text, remedy=NO_TORCH_REMEDY)


def _distributions(registry: Registry) -> Iterator[Finding]:
    """Yield each distribution with its plugins, and what hides it or its code."""
    installed, groups = _installed(), {kind.group for kind in registry.kinds}
    for name in sorted({entry.distribution for entry in registry.entries} | {FIRST_PARTY}):
        own = [entry for entry in registry.entries if entry.distribution == name and entry.group in groups]
        found = installed.get(name, [])
        version = found[0].version if found else "?"
        count = plural(len(own), "plugin")
        if not own and name == FIRST_PARTY:
            remedy = "pip install petra-graph, or pip install -e . in its folder"
            yield finding(name, "broken", "its own plugins are not found", remedy=remedy)
            continue
        lacking = list(unmet(found[0].requires or ())) if found and name != FIRST_PARTY else []
        said = [f"{needed.name}{needed.specifier} is needed ({here or 'not installed'})" for needed, here in lacking]
        asked = " ".join(f"'{needed.name}{needed.specifier}'" for needed, _ in lacking)
        yield finding(
            name,
            "broken" if lacking else "ok",
            "; ".join([f"{version}, {count}", *said]),
            remedy=f"pip install {asked}" if lacking else "",
        )
        whole = [one for one in found if not str(getattr(one, "_path", "")).endswith(_LEFT_BESIDE_SOURCES)]
        if len({str(_folder(one)) for one in whole}) > 1:
            places = " and ".join(f"{one.version} in {_folder(one)}" for one in whole)
            remedy = f"pip uninstall {name}, as often as it is there, and install it once"
            yield finding(
                name, "warning", f"is installed more than once: {places}; the first one counts", remedy=remedy
            )
        for top in sorted({entry.target.partition(":")[0].partition(".")[0] for entry in own}):
            hidden = _hidden_by(top, found[0]) if found else None
            if hidden is not None:
                remedy = f"rename or remove {hidden}, or take its folder from PYTHONPATH"
                text = f"its module {top!r} is hidden by {hidden}, which Python finds first"
                yield finding(name, "warning", text, remedy=remedy)


def _remedy(distribution: str) -> str:
    if not distribution:
        return ""
    return f"install {distribution} again if its entry points have changed; otherwise report it to its author, or remove it"


def _installed() -> dict[str, list[metadata.Distribution]]:
    """Return the distributions by their names, in the order in which Python finds them."""
    found: dict[str, list[metadata.Distribution]] = {}
    for one in metadata.distributions():
        with suppress(Exception):  # metadata of another package may be anything
            found.setdefault(canonical(one.metadata["Name"]), []).append(one)
    return found


def _folder(distribution: metadata.Distribution) -> Path:
    return Path(str(distribution.locate_file(""))).resolve()


def _hidden_by(top: str, distribution: metadata.Distribution) -> Path | None:
    """Return the file that Python imports in place of the distribution's own module; None where it is its own."""
    names = {f"{top}.py", f"{top}/__init__.py"}
    own = [file for file in distribution.files or () if file.as_posix() in names]
    spec = PathFinder.find_spec(top)
    if (
        not own or spec is None or spec.origin is None
    ):  # installed for editing: the module is in a folder that is not listed
        return None
    expected, found = Path(str(own[0].locate())).resolve(), Path(spec.origin).resolve()
    return None if expected == found else found


def _taken(registry: Registry) -> Iterator[Finding]:
    """Yield the names that several plugins of a group have."""
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
