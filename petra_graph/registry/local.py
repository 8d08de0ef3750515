"""Blocks that are being written: `block = "my_module:MyBlock"` needs no package and no entry point.

Decision: a local block has no declaration apart from its class, so reading it imports the module, and usually torch.
`validate` therefore names these blocks and does not check them.
"""

from __future__ import annotations

import os
import pkgutil
import re
import sys
from importlib.machinery import PathFinder

from petra_graph.errors import PluginError, Problem, SpecError, shown
from petra_graph.registry.contracts import BlockDeclaration, NoOptions
from petra_graph.registry.trust import find_fault, guarded


def is_local(name: str) -> bool:
    """Return whether a name has the form "module:Class"."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", name) is not None


def missing_module(name: str) -> Problem | None:
    """Return the problem of a "module:Class" whose top package cannot be found; this imports nothing."""
    top = name.partition(":")[0].partition(".")[0]
    if top in sys.modules or PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is not None:  # noqa: PTH109  a string
        return None
    return Problem(
        message=f"block {shown(name)} has no module: {top!r} is neither importable nor a distribution with blocks",
        hint=f"modules are looked for in {os.getcwd()} and on Python's path",  # noqa: PTH109  ditto
    )


def resolve_local_block(name: str) -> BlockDeclaration:
    """Import "module:Class" and return the declaration that follows from the class's own attributes.

    The current folder joins Python's path, as with `python -m`.

    Raises:
        SpecError: there is no such module.
        PluginError: importing it fails, or the class is no block.
    """
    missing = missing_module(name)
    if missing is not None:
        raise SpecError(missing)
    here = os.getcwd()  # noqa: PTH109  sys.path holds strings
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    cls = guarded(lambda: pkgutil.resolve_name(name), f"block {shown(name)} cannot be loaded")
    fault = "" if isinstance(cls, type) and hasattr(cls, "kind") else "is not a class with a `kind`, as blocks are"
    if not fault:
        declaration = BlockDeclaration(
            summary=((cls.__doc__ or "").strip().partition("\n")[0]) or cls.__name__,
            options=getattr(cls, "Options", NoOptions),
            build=name,
            kind=cls.kind,
            streams=getattr(cls, "streams", None),
        )
        fault = find_fault(declaration, BlockDeclaration)
        if not fault:
            return declaration
    hint = "subclass one of petra_graph.blocks, and give it an attrs class `Options`"
    raise PluginError(Problem(message=f"block {shown(name)} {fault}", hint=hint))
