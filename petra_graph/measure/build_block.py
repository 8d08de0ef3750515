"""A node's module, built from its block's code with the parameters that a run begins with, or refused by its node.

Training builds its modules with the same `build_block` as measurements, so the modules measured are the modules trained.

A parameter that several nodes name in `Block.shared_parameters` begins in all of them with the values of the first. Nodes of one stage have one
parameter: gradients of all uses are summed, and it is updated once, as in plain torch. Nodes of several stages cannot, since each stage
updates its own parameters at its own time (`planning.network`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from attrs import evolve
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_leaves_with_path

from petra_graph.blocks import Block, Head, Reversible, Shape
from petra_graph.blocks.randomness import fork_rng, random_key
from petra_graph.errors import PetraGraphError, PluginError, Problem, SpecError
from petra_graph.graph.node_graph import Node, NodeGraph
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.plugins.author_code import author_line
from petra_graph.plugins.generators import seeded
from petra_graph.record.weights import SEPARATOR, is_named

if TYPE_CHECKING:
    from petra_graph.measure.node_shapes import NodeShapes

T = TypeVar("T")
_BASES: Mapping[str, type] = {"reversible": Reversible, "head": Head, "buffered": Block}
"""The base class of a block, by the kind of its node; a buffered node takes any block."""


def build_block(node: Node, inputs: Sequence[Shape]) -> Block:
    """Build a node's module on torch's current default device.

    SpecError: the block refuses these shapes or options. PluginError: its code cannot be imported, or is not a block of the node's kind.
    """
    assert node.plugin is not None
    _check_class(node, node.plugin.code)
    with refusing(node, inputs, "cannot be built"):
        try:
            # As torch's, whose key the caller has set: a constructor draws the same from any of the three in every process.
            with seeded(torch.initial_seed()):
                block: Block = node.plugin.make(inputs)
        except SpecError as error:
            raise SpecError(_of_node(node, problem) for problem in error.problems) from error
        found = [*_unregistered(block), *_misnamed(block)]
    for fault in found:  # each would train, and wrongly
        raise PluginError(Problem(message=f'{node.plugin.owned}: node "{node.name}" {fault}', path=node.path))
    for name, parameter in block.named_parameters():
        if is_named(node.frozen, f"{node.name}{SEPARATOR}{name}"):
            parameter.requires_grad = False
    return block


def without_values(run: Callable[[str], T]) -> T:
    """Return what `run("meta")` returns; or `run("cpu")`, where a block's code raises there: whether it is wrong, the CPU decides.

    Torch has several classes and many words for values that are missing, and an author may refuse the device.
    """
    with uncompiled(), torch.random.fork_rng(devices=[]):
        try:
            return run("meta")
        except SpecError as error:
            if error.__cause__ is None or isinstance(error.__cause__, PetraGraphError):
                raise  # what was refused is the same on any device
        return run("cpu")


def build_to_look_at(node: Node, inputs: Sequence[Shape]) -> Block:
    """Build a node's module to see its tensors' names and shapes; errors as `build_block`."""

    def built(device: str) -> Block:
        with torch.device(device):
            return build_block(node, inputs)

    return without_values(built)


def _check_class(node: Node, block_class: Any) -> None:
    """Check the base and the methods of a class, which torch's modules do not enforce as abstract classes do."""
    build = f"{block_class.__module__}:{block_class.__qualname__}"
    base, fault = _BASES[node.kind], ""
    if not (isinstance(block_class, type) and issubclass(block_class, Block)):
        fault = f"{build} is not a subclass of petra_graph.blocks.Block"
    elif not issubclass(block_class, base):
        fault = f'node "{node.name}" is {node.kind}, and {build} is not a subclass of {base.__name__}'
    else:
        names = (name for name in dir(block_class) if name != "inverse" or node.kind == "reversible")
        missing = [name for name in names if getattr(getattr(block_class, name), "__isabstractmethod__", False)]
        if missing:
            fault = f"{build} does not define {', '.join(f'`{name}`' for name in missing)}"
    if fault:
        assert node.plugin is not None
        hint = 'write it in the class, or set kind = "buffered"' if fault.endswith("`inverse`") else ""
        raise PluginError(Problem(message=f"{node.plugin.owned}: {fault}", hint=hint, path=node.path))


def _misnamed(block: Block) -> Iterator[str]:
    """Yield why an attribute of a block that names tensors of its own cannot be followed, in the words that end a sentence."""
    parameters = [name for name, _ in block.named_parameters(remove_duplicate=False)]
    buffers = [name for name, _ in block.named_buffers()]
    for attribute, names in (("undecayed", parameters), ("tables", parameters), ("keep_dtype", buffers)):
        noun = "buffer" if names is buffers else "parameter"
        for pattern in getattr(block, attribute):
            if not fnmatch.filter(names, pattern):
                yield f"has no {noun} {pattern!r}, which its `{attribute}` names; it has {', '.join(names) or 'none'}"


_OF_TORCH = frozenset(vars(nn.Module()))


def _unregistered(block: nn.Module) -> Iterator[str]:
    """Yield why tensors in attributes of a block or of its parts would not train: they require a gradient, and are not parameters.

    Layers in a plain Python list would train on silently with the values that they began with. Private attributes of torch's own modules
    hold what was registered a second time, or as it was before a parametrization.
    """
    registered = {id(parameter) for parameter in block.parameters()}
    hidden = []
    for prefix, part in block.named_modules():
        hides = ("_",) if type(part).__module__.startswith("torch.") else ()
        for name, attribute in vars(part).items():
            if name in _OF_TORCH or name.startswith(hides):
                continue
            for place, value in tree_leaves_with_path(attribute):
                path = (f"{prefix}.{name}" if prefix else name) + keystr(place)
                for at, one in value.named_parameters(path) if isinstance(value, nn.Module) else [(path, value)]:
                    if isinstance(one, Tensor) and one.requires_grad and one.is_leaf and id(one) not in registered:
                        hidden.append(at)
    if hidden:
        yield (
            f"holds what requires a gradient and is not a parameter, so that it is neither updated nor saved: {', '.join(hidden)}; "
            "hold layers in nn.ModuleList or nn.ModuleDict, a tensor in nn.Parameter or register_buffer"
        )


def _of_node(node: Node, problem: Problem) -> Problem:
    """Return a problem of a block's options, whose path counts from them, as one of its node; an architecture's nodes are not in the specification."""
    path = (*node.path, "options", *problem.path) if node.path[:1] == ("graph",) else node.path
    return evolve(problem, message=f'node "{node.name}": block "{node.block}": {problem.message}', path=path)


@contextmanager
def refusing(node: Node, inputs: Sequence[Shape], what: str, by_torch: str = "") -> Iterator[None]:
    """Refuse a node whose block raises inside, with its inputs and the line of its author; `by_torch` is what, where no such line raised."""
    try:
        yield
    except (KeyboardInterrupt, PetraGraphError):
        raise
    except BaseException as error:
        at = author_line(error)
        hint = f"its input streams are {listing(inputs)} (without the batch); it reads {', '.join(node.inputs)}"
        message = f'node "{node.name}": block "{node.block}" {what if at else by_torch or what}: {_reason(error)}'
        raise SpecError(Problem(message=message, hint=hint + (at and f"; raised at {at}"), path=node.path)) from error


def _reason(error: BaseException) -> str:
    """Return the first line of an error's message; with its class where that is one word, as in KeyError('width'), or where it is no `Exception`."""
    line = str(error).strip().partition("\n")[0]
    kind = type(error).__name__
    return line if " " in line and isinstance(error, Exception) else f"{kind}: {line}" if line else kind


def listing(shapes: Sequence[Shape]) -> str:
    """Return shapes as messages show them: "8x6x6, 8x6x6"."""
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) or "nothing"


def initial_block(node: Node, inputs: Sequence[Shape], seed: int) -> Block:
    """Build a node on the CPU, with the random parameters of a run's seed; errors as `build_block`.

    Nodes whose block has `drawn_as` are made by one constructor, and so draw the same.
    """
    assert node.plugin is not None
    with fork_rng(random_key(seed, node.plugin.code.drawn_as or node.name, "initial"), torch.device("cpu")):
        return build_block(node, inputs)


def initial_blocks(
    graph: NodeGraph, shapes: Mapping[str, NodeShapes], seed: int, names: Iterable[str]
) -> dict[str, Block]:
    """Build nodes on the CPU; their parameters follow from the seed and the names of the nodes; SpecError, PluginError: as `build_block`."""
    first: dict[str, tuple[str, str]] = {}
    for name in graph.order:
        for key, shared in shapes[name].shared.items():
            first.setdefault(shared.label, (name, key))

    @cache
    def built(name: str) -> Block:
        return initial_block(graph.nodes[name], shapes[name].inputs, seed)

    blocks = {name: built(name) for name in names}
    for name, block in blocks.items():
        for key, shared in shapes[name].shared.items():
            owner, known = first[shared.label]
            if owner != name:
                with torch.no_grad():
                    block.get_parameter(key).copy_(built(owner).get_parameter(known))
    for block in blocks.values():
        vars(block).pop("built", None)  # the network that parts were taken from
    return blocks


def tie(blocks: Mapping[str, Block], shapes: Mapping[str, NodeShapes]) -> None:
    """Let nodes of one stage have one parameter where they share it, trained if one of them trains it."""
    known: dict[str, nn.Parameter] = {}
    for name, block in blocks.items():
        for key, shared in shapes[name].shared.items():
            own = block.get_parameter(key)
            one = known.setdefault(shared.label, own)
            if shared.trained:
                one.requires_grad_()
            for path, parameter in list(block.named_parameters(remove_duplicate=False)):
                if parameter is own:
                    layer, _, last = path.rpartition(".")
                    setattr(block.get_submodule(layer), last, one)
