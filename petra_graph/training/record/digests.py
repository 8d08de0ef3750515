"""Digests of what a run is made of besides its specification: the code that no version number stands for, and the data.

Processes of one run compare them, a run writes them down, and whoever takes up its directory later says what has changed.

Code is that of the modules which the specification names, and of the modules that they import, as far as their files lie outside the
folders of installed packages. Of the data there are the number of samples, the labels, the contents of a few samples and, if a split
has `files`, their names and sizes, and the bytes of some. If labels or files are very many, some count that are spread over all.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import file_digest, sha256
from importlib.metadata import version
from importlib.util import resolve_name
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from petra_graph.errors import PetraGraphError
from petra_graph.kinds.author_code import is_author_code
from petra_graph.kinds.checked_samples import CheckedSplit
from petra_graph.kinds.plugin import FIRST_PARTY
from petra_graph.kinds.tensor_trees import leaves
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.record.run_files import read_json
from petra_graph.registry.local_plugins import is_local
from petra_graph.spec.keys import IS_CODE, keys_with

LIBRARIES = ("petra-graph", "torch", "numpy")
"""The libraries on whose versions the bits depend."""
Digests = Mapping[str, str]
"""By what each is of, in words."""
FILE = "digests.json"
_SHOWN = 12
"""The number of digits that are kept of a digest."""
_SAMPLES, _SPREAD = 8, 65_536
"""How many samples are fetched, and the most labels and sizes of files."""
_READ, _BEGIN = 256, 65_536
"""The most files that are read, and the most bytes of each: files of formats without compression have equal sizes."""
_INSTALLED = {"site-packages", "dist-packages"}


def library_versions() -> Digests:
    return {name: version(name) for name in LIBRARIES}


def digest_code(checked: CheckedSpec) -> Digests:
    """Return the versions of the plugins' packages, and the digest of each module of no package; they have been imported."""
    packages = sorted({one.distribution for one in checked.plugins} - {"", FIRST_PARTY})
    found = {f"{name}'s version": version(name) for name in packages}
    for name in sorted(_reach(set(_named_modules(checked)))):
        found[f"the code of {name}"] = _digest(Path(str(sys.modules[name].__file__)).read_bytes())
    return found


def digest_split(split: CheckedSplit) -> Digests:
    """Return the digests of one split; what cannot be read has none, and whoever needs it says why."""
    part, count = split.part, len(split)
    found = {f"the number of {part} samples": f"{count:,}"}
    with suppress(PetraGraphError):
        some = np.arange(min(count, _SAMPLES)) if split.in_order else spread_indices(count, _SAMPLES)
        samples, targets = split.fetch(some, seed=0, epoch=0)
        found[f"the contents of some {part} samples"] = _digest(
            b"".join(map(_bytes_of, (*leaves(samples), *leaves(targets))))
        )
        if split.fetch_targets is not None:
            found[f"the labels of the {part} samples"] = _digest(
                b"".join(map(_bytes_of, leaves(split.fetch_targets(spread_indices(count, _SPREAD)))))
            )
    if files := split.files:
        above = os.path.commonpath([min(files), max(files)])
        names = "\n".join(file[len(above) :] for file in files)
        sizes = ",".join(str(_size_of(files[index])) for index in spread_indices(len(files), _SPREAD))
        found[f"the names and sizes of the {part} files"] = _digest(
            f"{names}\n{sizes}".encode("utf-8", "surrogateescape")
        )
        found[f"the bytes of some {part} files"] = _digest(
            b"".join(_digest_beginning(files[index]) for index in spread_indices(len(files), _READ))
        )
    return found


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
    if checked.spec.init.reader is not None:
        yield checked.spec.init.reader
    for plugin, options in checked.configured:
        yield plugin.declaration.build
        yield plugin.name * is_local(plugin.name)
        yield from (getattr(options, key) or "" for key in keys_with(IS_CODE, type(options)))


def _reach(named: set[str]) -> set[str]:
    """Return the modules of "module:attribute" texts that are no installed package's, with those that they import."""
    ahead, found = [name.partition(":")[0] for name in named], set[str]()
    while ahead:
        name = ahead.pop()
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        if name in found or not is_author_code(file or "<") or _INSTALLED & set(Path(file).parts):
            continue
        found.add(name)
        ahead += [name.rpartition(".")[0], *_imports_of(name, file)]
    return found


def _imports_of(name: str, file: str) -> Iterator[str]:
    """Yield what a module may import, wherever in it; a name that is no module's is among it."""
    if not file.endswith(".py"):
        return
    package = sys.modules[name].__package__ or ""
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package or None)
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))


def spread_indices(count: int, most: int) -> NDArray[np.intp]:
    """Return some indices below `count`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.intp))


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _size_of(file: str) -> int:
    return os.stat(file).st_size if os.path.exists(file) else -1  # noqa: PTH110, PTH116  quicker than Path


def _digest_beginning(file: str) -> bytes:
    with suppress(OSError), open(file, "rb") as opened:  # noqa: PTH123  as above
        return sha256(opened.read(_BEGIN)).digest()
    return b"?"


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:_SHOWN]
