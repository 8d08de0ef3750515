"""Digests of what a run is made of besides its specification: local code, and the facts of the data.

Processes of one run compare them, a run writes them down, and whoever takes up its directory later says what has changed. Code is
that of the modules which the specification names and of those that they import, as far as their files are of no installed package.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from hashlib import file_digest, sha256
from importlib.metadata import version
from importlib.util import resolve_name
from pathlib import Path

import attrs

from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.plugins.checked_samples import CheckedData
from petra_graph.plugins.contract import FIRST_PARTY
from petra_graph.plugins.local_plugins import is_local
from petra_graph.record.run_directory import read_json
from petra_graph.spec.keys import IS_CODE, keys_with

LIBRARIES = ("petra-graph", "torch", "numpy")
"""The libraries on whose versions the bits depend."""
Digests = Mapping[str, str]
"""By what each is of, in words."""
FILE = "digests.json"
_SHOWN = 12
"""The digits that are kept of a digest."""
_PACKAGES = {"site-packages", "dist-packages", "petra_graph"}
"""Folders of code that a version number stands for."""


def library_versions() -> Digests:
    return {name: version(name) for name in LIBRARIES}


def digest_code(checked: CheckedSpec) -> Digests:
    """Return the versions of the plugins' packages, and one digest of the modules of no package; they have been imported."""
    packages = sorted({one.distribution for one in checked.plugins} - {"", FIRST_PARTY})
    found = {f"{name}'s version": version(name) for name in packages}
    files = sorted(_local_files(set(_named_modules(checked))))
    if files:
        found["local code"] = sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:_SHOWN]
    return found


def digest_facts(data: CheckedData) -> Digests:
    """Return the digest of what is known of the data: its class names among the facts, and how many samples the training and the test have."""
    together = len(data.train) + (0 if data.validation is None else len(data.validation))
    known = json.dumps([attrs.asdict(data.facts), together, len(data.test)], sort_keys=True, default=str)
    return {"facts of the data": sha256(known.encode()).hexdigest()[:_SHOWN]}


def digest_weights(begun: Path) -> Digests:
    """Return the digest of the weights that a run begins with: a file, or the files of a folder."""
    whole = sha256()
    for path in sorted(begun.iterdir()) if begun.is_dir() else [begun]:
        if path.is_file():
            with path.open("rb") as file:
                whole.update(file_digest(file, "sha256").digest())
    return {"the weights to begin with": whole.hexdigest()[:_SHOWN]}


def read_digests(directory: Path) -> Digests:
    """Return those that a run has written down; {} if it has not."""
    return read_json(directory / FILE, dict) or {}


def list_changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what is not as it was, of what both know."""
    return [
        f"{name}: {before} then, {now[name]} now" for name, before in then.items() if now.get(name, before) != before
    ]


def _named_modules(checked: CheckedSpec) -> Iterator[str]:
    """Yield the modules that the specification names, in names of plugins, in their declarations and in their options."""
    for plugin, options in checked.configured:
        yield plugin.declaration.build
        yield plugin.name * is_local(plugin.name)
        yield from (getattr(options, key) or "" for key in keys_with(IS_CODE, type(options)))


def _local_files(named: set[str]) -> set[str]:
    """Return the files of the modules of "module:attribute" texts, and of the modules that they import."""
    ahead, seen, files = [name.partition(":")[0] for name in named], set[str](), set[str]()
    while ahead:
        name = ahead.pop()
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        if name in seen or not file.endswith(".py") or _PACKAGES & set(Path(file).parts):
            continue
        if name.partition(".")[0] in sys.stdlib_module_names:
            continue
        seen.add(name)
        files.add(file)
        ahead += [name.rpartition(".")[0], *_imports_of(name, file)]
    return files


def _imports_of(name: str, file: str) -> Iterator[str]:
    """Yield what a module may import, wherever in it; a name that is no module's is among it."""
    package = sys.modules[name].__package__ or ""
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package or None)
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))
