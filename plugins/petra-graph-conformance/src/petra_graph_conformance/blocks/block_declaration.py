"""A declaration agrees with the class that it names; its module needs no torch."""

from __future__ import annotations

from petra_graph.blocks import Block, Buffered, Head, Reversible
from petra_graph.kinds.block import BlockDeclaration
from petra_graph.kinds.declaration import find_fault
from petra_graph.measure.build_block import undefined_methods
from petra_graph_conformance.blocks.block_trial import Trial
from petra_graph_conformance.broken_promise import BrokenPromise
from petra_graph_conformance.declaration_promises import check_options_class

_BASES = {"reversible": Reversible, "buffered": Buffered, "head": Head}


def check_declaration(trial: Trial) -> None:
    """Options are a frozen attrs class with keyword-only fields; kind, and streams and options that the class states, are its own."""
    declaration, block_class = trial.declaration, trial.block_class
    fault = find_fault(declaration, BlockDeclaration)
    if fault:
        raise BrokenPromise("declaration", f"it {fault}", "mend the declaration: no block can be built from it")
    for name, attribute in (("kind", "kind"), ("streams", "streams"), ("options", "Options")):
        declared, own = getattr(declaration, name), getattr(block_class, attribute)
        if declared is not None and declared != own and own is not getattr(Block, attribute, None):
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
