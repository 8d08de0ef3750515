"""A declaration agrees with the class that it names; its module needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys

import attrs

from petra_graph.blocks import Buffered, Head, Reversible
from petra_graph.measure.shapes import undefined_methods
from petra_graph.registry.contracts import BlockDeclaration, Declaration, NoOptions
from petra_graph.registry.declaration_faults import api_fault, find_fault
from petra_graph.testing.any_trial import PluginTrial
from petra_graph.testing.broken_promise import BrokenPromise
from petra_graph.testing.trial import Trial

_BASES = {"reversible": Reversible, "buffered": Buffered, "head": Head}


def check_declaration(trial: Trial) -> None:
    """Options are a frozen attrs class with keyword-only fields; kind, streams and options are the class's own."""
    declaration, block_class = trial.declaration, trial.block_class
    fault = find_fault(declaration, BlockDeclaration)
    if fault:
        raise BrokenPromise("declaration", f"it {fault}", "mend the declaration: no block can be built from it")
    for name, attribute in (("kind", "kind"), ("streams", "streams"), ("options", "Options")):
        declared, own = getattr(declaration, name), getattr(block_class, attribute)
        if declared != own:
            found = f"it declares {name} = {declared!r}, and {trial.name} has {own!r}"
            raise BrokenPromise("declaration", found, f"make them equal; the class's is its attribute `{attribute}`")
    base = _BASES[declaration.kind]
    if base not in block_class.__mro__:
        found = f"kind is {declaration.kind!r}, and {trial.name} does not subclass {base.__name__}"
        raise BrokenPromise("declaration", found, "subclass it: kinds are types, and training asks for the type")
    missing = undefined_methods(block_class, declaration.kind)
    if missing:
        written = " and ".join(f"`{name}`" for name in missing)
        remedy = "write it in the class; AdditiveCoupling has an inverse, Buffered needs none"
        raise BrokenPromise("declaration", f"{trial.name} does not define {written}", remedy)
    if declaration.streams is not None and declaration.streams != len(trial.inputs):
        found = f"it reads {declaration.streams} streams, and the trial has {len(trial.inputs)} inputs"
        raise BrokenPromise("declaration", found, "give as many shapes as the block reads, or mend `streams`")
    check_options_class(declaration)


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
        remedy = "keep declarations in a module that imports petra_graph.plugins alone, and __init__ empty"
        raise BrokenPromise("no torch", f"importing {module} imports torch", remedy)


def check_code_imports_no_torch(trial: PluginTrial) -> None:
    """The code of an architecture or a learning-rate schedule imports no torch: `validate` and plans run it."""
    check_imports_no_torch(trial.plugin.declaration.build.partition(":")[0])


def _is_frozen(options: type) -> bool:
    """Whether attrs made the class refuse assignment; a subclass may not."""
    return vars(options).get("__setattr__") is vars(NoOptions)["__setattr__"]
