"""The packages of the plugins that a run used: one that is missing later can be named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from petra_graph.errors import SpecError
from petra_graph.kinds.plugin import FIRST_PARTY, Plugin
from petra_graph.record.recorded_run import read_json

RESOLVED = "resolved.toml"


def packages_of(plugins: Iterable[Plugin]) -> Mapping[str, str]:
    """Return the package and its version of each plugin that is not the first party's, by "blocks/NAME"."""
    found = {}
    for plugin in plugins:
        if plugin.distribution and plugin.distribution != FIRST_PARTY:
            found[plugin.label] = plugin.distribution
            with suppress(PackageNotFoundError):
                found[plugin.label] += f" {version(plugin.distribution)}"
    return dict(sorted(found.items()))


def packages_then(spec: object) -> Mapping[str, str]:
    """Return them of the run whose resolved specification this file is; of any other specification, nothing."""
    if not isinstance(spec, str) or Path(spec).name != RESOLVED:
        return {}
    with suppress(SpecError):
        written = (read_json(Path(spec).parent / "env.json", dict) or {}).get("plugins")
        if isinstance(written, dict):
            return {name: package for name, package in written.items() if isinstance(package, str)}
    return {}
