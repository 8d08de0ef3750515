"""The environment: Python, the packages that petra-graph needs with their versions, extras, variables, the current folder."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

from attrs import field, frozen
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

import petra_graph
from petra_graph.planning import cpp_compiler
from petra_graph.units import memory

_EXTRA = re.compile(r"extra == \"([\w-]+)\"")
_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
"""Set by torchrun for the processes of a run."""

Status = Literal["ok", "absent", "warning", "broken"]
"""absent: something optional that is not here; broken: a run, or a plugin, cannot work."""


@frozen
class Finding:
    """What was found of one thing, and what to do about it, if anything."""

    area: Literal["environment", "devices", "plugins"] = field(kw_only=True)
    name: str
    status: Status
    found: str
    remedy: str = ""


finding = partial(Finding, area="environment")


def examine_environment(
    requirements: Iterable[str] | None = None, variables: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Yield the findings.

    Args:
        requirements: as metadata have them, "torch>=2.8" or 'onnx>=1.17; extra == "onnx"'; None: petra-graph's own.
    """
    yield finding("petra-graph", "ok", f"{petra_graph.__version__} in {Path(petra_graph.__file__).parent}")
    yield finding("python", "ok", f"{platform.python_version()} at {sys.executable}, {platform.platform()}")
    if requirements is None:
        with suppress(metadata.PackageNotFoundError):  # the plugins' part says that petra-graph is not installed
            requirements = metadata.requires("petra-graph")
    extras: dict[str, list[Requirement]] = {}
    for needed in map(Requirement, requirements or ()):
        extra = _EXTRA.search(str(needed.marker))
        if extra is None and _applies_here(needed):
            yield _examine_package(needed)
        elif extra is not None:
            extras.setdefault(extra[1], []).append(needed)
    yield from (_examine_extra(name, needed) for name, needed in extras.items() if name != "test")
    if "RANK" in variables:
        launched = [name for name in _LAUNCHED if name in variables]
        yield finding(
            "variables",
            "warning",
            f"{', '.join(launched)}: every run here takes itself for a process of torchrun, and waits for the others",
            remedy=f"unset {' '.join(launched)}",
        )
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG"):
        if name in variables:
            yield finding(name, "ok", variables[name] or "empty")
    if lacking := cpp_compiler.lacking():
        remedy = f"{cpp_compiler.REMEDY}, if run.compile is wanted"
        yield finding("compiler", "absent", f"lacks {lacking}, which run.compile needs", remedy=remedy)
    else:
        yield finding("compiler", "ok", "a C++ compiler and Python's headers, for run.compile")
    yield _examine_folder()


def unmet(requirements: Iterable[str]) -> Iterator[tuple[Requirement, str | None]]:
    """Yield the requirements of a distribution, without its extras, that are not met, with the version that is installed."""
    for text in requirements:
        with suppress(InvalidRequirement):  # metadata of another package may be anything
            needed = Requirement(text)
            version, enough = _installed_version(needed)
            if not enough and _applies_here(needed):
                yield needed, version


def _applies_here(needed: Requirement) -> bool:
    """Whether a requirement is one of this system and this Python, whatever extras are asked for."""
    return needed.marker is None or needed.marker.evaluate({"extra": ""})


def _examine_package(needed: Requirement) -> Finding:
    version, enough = _installed_version(needed)
    if enough:
        return finding(needed.name, "ok", version or "")
    asked = f"{needed.name}{needed.specifier}"
    found = f"{version or 'not installed'}; {asked} is needed"
    return finding(needed.name, "broken", found, remedy=f"pip install '{asked}'")


def _examine_extra(extra: str, needed: Iterable[Requirement]) -> Finding:
    states = [(one.name, *_installed_version(one)) for one in needed if not one.name.startswith("petra-graph")]
    lacking = [name for name, _, enough in states if not enough]
    status: Status = "absent" if lacking else "ok"
    found = ", ".join(f"{name} {version}" for name, version, _ in states if name not in lacking)
    if lacking:
        found = f"lacks {', '.join(lacking)}" + (f"; has {found}" if found else "")
    remedy = f"pip install 'petra-graph[{extra}]', if it is wanted" if lacking else ""
    return finding(f"extra {extra}", status, found, remedy=remedy)


def _installed_version(needed: Requirement) -> tuple[str | None, bool]:
    """Return the version that is installed, and whether it is one of those asked for."""
    try:
        version = metadata.version(needed.name)
    except Exception:  # noqa: BLE001  metadata of a damaged installation may be anything
        return None, False
    try:
        return version, Version(version).base_version in needed.specifier  # a candidate for a release counts as it
    except InvalidVersion:
        return version, False


def _examine_folder() -> Finding:
    try:
        here = Path.cwd()
        with TemporaryFile(dir=here):
            pass
    except OSError as error:
        remedy = "run in another folder, or set run.directory"
        return finding("folder", "warning", f"runs cannot be written: {error.strerror or error}", remedy=remedy)
    usage = os.statvfs(here)
    return finding("folder", "ok", f"{here}, {memory(usage.f_bavail * usage.f_frsize)} free")
