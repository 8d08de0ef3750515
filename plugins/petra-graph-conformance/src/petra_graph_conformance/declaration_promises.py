"""Promises of the declaration itself, which all kinds make; and those of modules that `validate` imports, which need no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from typing import Any

import attrs
from packaging.requirements import Requirement

from petra_graph.kinds.declaration import Declaration, NoOptions, api_fault, find_fault
from petra_graph.kinds.plugin import FIRST_PARTY
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.importers_of_torch import NO_TORCH_REMEDY
from petra_graph_conformance.plugin_trial import PluginTrial
from petra_graph_conformance.promise import Promise


def check_plugin_declaration(trial: PluginTrial) -> None:
    """The declaration keeps the contract of its kind; options are a frozen attrs class with keyword-only fields."""
    declaration = trial.plugin.declaration
    fault = api_fault(declaration) or find_fault(declaration, type(declaration))
    if fault:
        raise BrokenPromise("declaration", f"it {fault}", "mend the declaration: nothing can be built from it")
    check_options_class(declaration)


def check_options_class(declaration: Declaration) -> None:
    """Options are a frozen attrs class with keyword-only fields."""
    loose = [field.name for field in attrs.fields(declaration.options) if not field.kw_only]
    if loose or not _is_frozen(declaration.options):
        found = f"options class {declaration.options.__name__} can be changed or takes positional values"
        raise BrokenPromise("declaration", found, "decorate it with @attrs.frozen(kw_only=True)")
    bare = [name for name in _values_in(declaration.options) if name not in attrs.fields_dict(declaration.options)]
    if bare:
        found = f"{', '.join(bare)} of {declaration.options.__name__} has no annotation, so that it is no option"
        raise BrokenPromise("declaration", found, f"write `{bare[0]}: float = ...`, with the option's type")


def _values_in(options: type) -> list[str]:
    """Return the names in a class that have a value: numbers, texts, containers, and what `attrs.field` returns."""
    kinds = (bool, int, float, str, tuple, list, dict, type(attrs.field()))
    return [name for name, one in vars(options).items() if not name.startswith("_") and isinstance(one, kinds)]


def check_package(trial: Any) -> None:
    """What the package of the plugin requires is installed, in versions that it takes."""
    wrong = []
    for text in metadata.requires(trial.distribution) or ():
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            version = ""
        if not version or not needed.specifier.contains(version, prereleases=True):
            wrong.append(f"{needed.name}{needed.specifier} (found {version or 'none'})")
    if wrong:
        found = f"{trial.distribution} requires {', '.join(wrong)}"
        raise BrokenPromise("package", found, f"install what it requires: pip install {trial.distribution}")


def check_imports_no_torch(module: str) -> None:
    """The module of a declaration imports no torch: `validate`, `list` and every editor read it.

    Args:
        module: dotted name; an interpreter of its own imports it.

    Raises:
        BrokenPromise: the module imports torch.
    """
    code = f"import sys; import {module}; sys.exit('torch' in sys.modules and 3)"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=path)  # noqa: S603  ours
    if done.returncode not in {0, 3}:
        last = done.stderr.strip().rpartition("\n")[2]
        raise BrokenPromise(
            "no torch", f"importing {module} fails: {last}", "mend the import; a new interpreter is used"
        )
    if done.returncode:
        raise BrokenPromise("no torch", f"importing {module} imports torch", NO_TORCH_REMEDY)


def check_code_imports_no_torch(trial: PluginTrial) -> None:
    """The code of an architecture or a learning-rate schedule in a package imports no torch: `validate` and plans run it."""
    check_imports_no_torch(_module(trial))


def _is_packaged(trial: PluginTrial) -> bool:
    """Whether code is in a package, rather than in a loose module next to a specification, or within a test."""
    loose = "<locals>" in getattr(trial.plugin.code, "__qualname__", "")
    return bool(trial.distribution) or ("." in _module(trial) and not loose)


def _is_of_another_package(trial: Any) -> bool:
    return trial.distribution not in {"", FIRST_PARTY}


def _module(trial: PluginTrial) -> str:
    return trial.plugin.declaration.build.partition(":")[0]


def _is_frozen(options: type) -> bool:
    """Whether attrs made the class refuse assignment; a subclass may not."""
    return vars(options).get("__setattr__") is vars(NoOptions)["__setattr__"]


DECLARATION = Promise("declaration", check_plugin_declaration, foundation=True)
PACKAGE = Promise("package", check_package, applies=_is_of_another_package)
NO_TORCH = Promise("no torch", check_code_imports_no_torch, applies=_is_packaged, run=False)
