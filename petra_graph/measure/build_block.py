"""A node's module, built from its block's code, or refused by its node.

Training builds its modules with the same `build_block` as measurements, so the modules measured are the modules trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import evolve

from petra_graph.blocks import Block, Head, Reversible, Shape
from petra_graph.blocks.parameter_groups import stated_fault
from petra_graph.blocks.tensor_faults import tensor_fault
from petra_graph.errors import PetraGraphError, PluginError, Problem, SpecError, at_path
from petra_graph.graph.node_graph import Node
from petra_graph.kinds.author_code import author_line
from petra_graph.kinds.plugin import load
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.record.weights import SEPARATOR, is_named

_BASES: Mapping[str, type] = {"reversible": Reversible, "head": Head, "buffered": Block}
"""The base class of a block, by the kind of its node; a buffered node takes any block."""


def build_block(node: Node, inputs: Sequence[Shape]) -> Block:
    """Build a node's module on torch's current default device.

    Raises:
        SpecError: the block refuses these shapes or options.
        PluginError: the block's code cannot be imported, or is not a block of the node's kind.
    """
    assert node.plugin is not None
    with at_path(*node.path):
        block_class: type[Block] = load(node.plugin)
    _check_class(node, block_class, node.plugin.declaration.build)
    try:
        block = block_class(inputs, node.options)
        fault = stated_fault(block)
    except SpecError as error:
        raise SpecError(_of_node(node, problem) for problem in error.problems) from error
    except (KeyboardInterrupt, PetraGraphError):
        raise
    except BaseException as error:
        problem = refused(node, inputs, "cannot be built", error)
        if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
            code = getattr(block_class.__init__, "__code__", None)
            at = f"; its own is at {code.co_filename}:{code.co_firstlineno}" if code else ""
            hint = f"write `def __init__(self, inputs, options)` and, in it, `super().__init__(inputs, options)`{at}"
            problem = evolve(problem, hint=hint)
        raise SpecError(problem) from error
    if (wrong := tensor_fault(block)) is not None:
        message = f'node "{node.name}": {node.plugin.owned} {wrong.found}'
        raise PluginError(Problem(message=message, hint=wrong.remedy, path=node.path))
    if fault:
        message = f'{node.plugin.owned}: node "{node.name}" {fault}'
        raise PluginError(Problem(message=message, hint="name parameters as `named_parameters()` does", path=node.path))
    for name, parameter in block.named_parameters():
        if is_named(node.frozen, f"{node.name}{SEPARATOR}{name}"):
            parameter.requires_grad = False
    return block


@uncompiled()
def build_to_look_at(node: Node, inputs: Sequence[Shape]) -> Block:
    """Build a node's module on the meta device, or on the CPU where that refuses it; errors as `build_block`."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return build_block(node, inputs)
        except SpecError as error:
            if not needs_values(error.__cause__):
                raise
        return build_block(node, inputs)


def _check_class(node: Node, block_class: Any, build: str) -> None:
    """Check the base and the methods of a class, which torch's modules do not enforce as abstract classes do."""
    fault = class_fault(block_class, node.kind, build, f'node "{node.name}" is {node.kind}')
    if fault is not None:
        message, hint = fault
        assert node.plugin is not None
        raise PluginError(Problem(message=f"{node.plugin.owned}: {message}", hint=hint, path=node.path))


def class_fault(block_class: Any, kind: str, build: str, meant: str) -> tuple[str, str] | None:
    """Return why a class cannot be a block of a kind, and what to do; None: it can.

    Args:
        block_class: what `build` names.
        kind: of a node, or of the declaration.
        build: "module:attribute".
        meant: who wants it, as in 'node "a" is reversible'.
    """
    base = _BASES[kind]
    if not (isinstance(block_class, type) and issubclass(block_class, Block)):
        return f"{build} is not a subclass of petra_graph.blocks.Block", "subclass AdditiveCoupling, Buffered or Head"
    if not issubclass(block_class, base):
        hint = "subclass AdditiveCoupling, or Reversible with an inverse" if base is Reversible else "subclass Head"
        return f"{meant}, and {build} is not a subclass of {base.__name__}", hint
    if missing := undefined_methods(block_class, kind):
        written = ", ".join(f"`{name}`" for name in missing)
        hint = 'write it, or set kind = "buffered"' if missing == ["inverse"] else f"write {written} in the class"
        return f"{build} does not define {written}", hint
    return None


def undefined_methods(block_class: type[Block], kind: str) -> list[str]:
    """Return the methods that a class must define for a node of this kind, and does not."""
    names = [name for name in dir(block_class) if getattr(getattr(block_class, name), "__isabstractmethod__", False)]
    return [name for name in names if name != "inverse" or kind == "reversible"]


def _of_node(node: Node, problem: Problem) -> Problem:
    """Return a problem of a block's options, whose path counts from them, as one of its node.

    The options of an architecture's nodes are not in the specification.
    """
    path = (*node.path, "options", *problem.path) if node.path[:1] == ("graph",) else node.path
    return evolve(problem, message=f'node "{node.name}": block "{node.block}": {problem.message}', path=path)


def needs_values(error: BaseException | None) -> bool:
    """Whether the meta device stopped a block: torch uses several classes for that error, but each message names the device.

    Only `torch.autocast(x.device.type, enabled=False)` says something else.
    """
    text = str(error).lower()
    return isinstance(error, NotImplementedError) or "meta" in text or text == "unsupported scalartype"


def refused(node: Node, shapes: Sequence[Shape], what: str, error: BaseException) -> Problem:
    at = author_line(error)
    hint = f"its input streams are {listing(shapes)} (without the batch); it reads {', '.join(node.inputs)}"
    if () in shapes:
        hint += ", which gives one number a sample, without features: let it return [n, 1] for [n]"
    return Problem(
        message=f'node "{node.name}": block "{node.block}" {what}: {_reason(error)}',
        hint=f"{hint}; raised at {at}" if at else hint,
        path=node.path,
    )


def _reason(error: BaseException) -> str:
    """Return the first line of an error's message; with its class where that is one word, as in KeyError('width').

    The class of an error that is not an `Exception` is always named: `sys.exit("no such file")` would look like one.
    """
    line = str(error).strip().partition("\n")[0]
    kind = type(error).__name__
    return line if " " in line and isinstance(error, Exception) else f"{kind}: {line}" if line else kind


def listing(shapes: Sequence[Shape]) -> str:
    """Return shapes as messages show them: "8x6x6, 8x6x6"."""
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) or "nothing"
