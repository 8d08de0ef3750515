"""A node's module, built from its block's code with the parameters that a run begins with, or refused by its node; and its streams' shapes.

Training builds its modules with the same `build_block` as measurements, so the modules measured are the modules trained. Shapes come from a batch
of two on torch's meta device, where shapes and dtypes are real and data is not; a block that reads values is built and run on the CPU.

A parameter that several nodes name in `Block.shared_parameters` begins in all of them with the values of the first. Nodes of one stage have one
parameter: gradients of all uses are summed, and it is updated once, as in plain torch. Nodes of several stages cannot, since each stage
updates its own parameters at its own time (`planning.network`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeVar

import torch
from attrs import evolve, frozen
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from petra_graph.blocks import Block, Head, Reversible, Shape, Streams, frozen_statistics
from petra_graph.blocks.randomness import fork_rng, random_key
from petra_graph.errors import PetraGraphError, PluginError, Problem, SpecError
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.plugins.author_code import author_line
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.generators import seeded
from petra_graph.plugins.tensor_trees import is_several
from petra_graph.program.channels import StreamType
from petra_graph.record.weights import SEPARATOR, is_named

T = TypeVar("T")
_BATCH = 2
_BASES: Mapping[str, type] = {"reversible": Reversible, "head": Head, "buffered": Block}
"""The base class of a block, by the kind of its node; a buffered node takes any block."""


def build_block(node: Node, inputs: Sequence[Shape]) -> Block:
    """Build a node's module on torch's current default device.

    SpecError: the block refuses these shapes or options. PluginError: its code cannot be imported, or is not a block of the node's kind.
    """
    assert node.plugin is not None
    fault = _fault_of_class(node, node.plugin.code)
    if not fault:
        with refusing(node, inputs, "cannot be built"):
            try:
                # As torch's, whose key the caller has set: a constructor draws the same from any of the three in every process.
                with seeded(torch.initial_seed()):
                    block: Block = node.plugin.make(inputs)
            except SpecError as error:
                raise SpecError(_of_node(node, problem) for problem in error.problems) from error
            fault = _fault(block)
    if fault:
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


def _fault_of_class(node: Node, of: Any) -> str:
    """Return what is wrong with the base and the methods of a class, as the end of a sentence; torch's modules do not enforce abstract methods."""
    build, base = f"{of.__module__}:{of.__qualname__}", _BASES[node.kind]
    if not (isinstance(of, type) and issubclass(of, base)):
        return f"is {node.kind}, and {build} is not a subclass of {base.__name__}"
    names = (name for name in dir(of) if name != "inverse" or node.kind == "reversible")
    missing = [name for name in names if getattr(getattr(of, name), "__isabstractmethod__", False)]
    return f"is {node.kind}, and {build} does not define {', '.join(missing)}" if missing else ""


_OF_TORCH = frozenset(vars(nn.Module()))


def _fault(block: Block) -> str:
    """Return why a block would train, and wrongly; as the end of a sentence.

    An attribute names tensors that it does not have, or holds what requires a gradient and is no parameter: layers in a plain Python list would
    train on silently with the values that they began with.
    """
    parameters = [name for name, _ in block.named_parameters(remove_duplicate=False)]
    buffers = [name for name, _ in block.named_buffers()]
    for attribute, names in (("undecayed", parameters), ("tables", parameters), ("keep_dtype", buffers)):
        for pattern in getattr(block, attribute):
            if not fnmatch.filter(names, pattern):
                return f"has no tensor {pattern!r}, which its `{attribute}` names; it has {', '.join(names) or 'none'}"

    registered, hidden = {id(parameter) for parameter in block.parameters()}, list[str]()
    for prefix, part in block.named_modules():
        # Private attributes of torch's own modules hold what was registered a second time, or as it was before a parametrization.
        hides = ("_",) if type(part).__module__.startswith("torch.") else ()
        for name, attribute in vars(part).items():
            if name in _OF_TORCH or name.startswith(hides):
                continue
            for value in tree_leaves(attribute):
                held = value.parameters() if isinstance(value, nn.Module) else filter(torch.is_tensor, [value])
                if any(one.requires_grad and one.is_leaf and id(one) not in registered for one in held):
                    hidden.append(f"{prefix}.{name}".removeprefix("."))
    if not hidden:
        return ""
    return (
        f"holds what requires a gradient and is not a parameter, so that it is neither updated nor saved: {', '.join(dict.fromkeys(hidden))}; "
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
        at, line, reason = author_line(error), str(error).strip().partition("\n")[0], type(error).__name__
        if line:  # of a class, where the line is one word, as in KeyError('width'), or the error is no `Exception`
            reason = line if " " in line and isinstance(error, Exception) else f"{reason}: {line}"
        hint = f"its input streams are {listing(inputs)} (without the batch); it reads {', '.join(node.inputs)}"
        message = f'node "{node.name}": block "{node.block}" {what if at else by_torch or what}: {reason}'
        raise SpecError(Problem(message=message, hint=hint + (at and f"; raised at {at}"), path=node.path)) from error


def listing(shapes: Sequence[Shape]) -> str:
    """Return shapes as messages show them: "8x6x6, 8x6x6"."""
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) or "nothing"


# --- shapes ---


@frozen(kw_only=True)
class NodeParameter:
    """A parameter of one node."""

    values: int
    trained: bool
    label: str
    """Its one name in all nodes that have it, as in `Block.shared_parameters`; "" if it is this node's alone."""


@frozen(kw_only=True)
class NodeShapes:
    """Shapes of one node's streams, without the batch dimension, and its parameters."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    """Element types of the outputs, as a network in float32 returns them."""
    named: Mapping[str, NodeParameter]
    """Its parameters, by their names in the block."""
    several: bool
    """Whether it is a head that gives the loss several tensors, or one in a structure."""

    @property
    def parameters(self) -> int:
        """Number of their values."""
        return sum(one.values for one in self.named.values())

    @property
    def shared(self) -> Mapping[str, NodeParameter]:
        """The parameters that other nodes have too."""
        return {name: one for name, one in self.named.items() if one.label}

    @property
    def streams(self) -> tuple[StreamType, ...]:
        """The outputs' shapes and element types."""
        names = (str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        return tuple(StreamType(*pair) for pair in zip(self.outputs, names, strict=True))


class Memo(list[tuple[Any, T]]):
    """Values by keys that need not be hashable, as options of plugins are."""

    def get(self, key: object, measure: Callable[[], T]) -> T:
        """Return the value of a key, measured the first time."""
        for known, value in self:
            if known == key:
                return value
        self.append((key, measure()))
        return self[-1][1]


@uncompiled()
def measure_shapes(graph: NodeGraph, facts: DataFacts) -> Mapping[str, NodeShapes]:
    """Run all nodes in order; SpecError: blocks refuse their input, or their inverses do not return shapes; PluginError: as `build_block`."""
    samples = (
        torch.empty(_BATCH, *shape, dtype=torch.int64 if dtype == "int64" else torch.float32, device="meta")
        for shape, dtype in facts.inputs.values()
    )
    return dict(each_node(graph, tuple(samples), _measure))


def each_node(
    graph: NodeGraph, samples: Streams, measure: Callable[[Node, Streams], tuple[T, Streams]]
) -> Iterator[tuple[str, T]]:
    """Yield the nodes in order, with what is measured of them: once of all with equal blocks, options and inputs.

    Streams are on the meta device. `measure` also returns the node's outputs. SpecError: nodes were refused; those that follow one are left out.
    """
    memo = Memo[tuple[T, Streams]]()
    streams: dict[str, Streams] = {INPUT: samples}
    problems: list[Problem] = []
    for name in graph.order:
        node = graph.nodes[name]
        if any(producer not in streams for producer in node.inputs):
            continue
        inputs = tuple(stream for producer in node.inputs for stream in streams[producer])
        of_name = node.frozen and (node.name, *node.frozen)
        read = [(stream.shape, stream.dtype) for stream in inputs]
        key = (node.plugin, node.options, node.kind, of_name, read, INPUT in node.inputs)
        try:
            found, streams[name] = memo.get(key, partial(measure, node, inputs))
        except SpecError as error:
            problems.extend(error.problems)
        else:
            yield name, found
    if problems:
        raise SpecError(problems)


def _measure(node: Node, inputs: Streams) -> tuple[NodeShapes, Streams]:
    expected = node.plugin.code.streams if node.plugin else None
    if expected is not None and (given := len(inputs)) != expected:
        message = f'node "{node.name}": block "{node.block}" reads {expected} streams, and its inputs carry {given}'
        between_nodes = expected > given and INPUT not in node.inputs
        hint = "a stem with streams = 2 feeds reversible blocks" if between_nodes else ""
        raise SpecError(Problem(message=message, hint=hint, path=node.path))
    block, outputs, several = without_values(partial(_build_and_run, node, inputs))
    labels = block.shared_parameters
    measured = NodeShapes(
        inputs=_shapes(inputs),
        outputs=_shapes(outputs),
        dtypes=tuple(stream.dtype for stream in outputs),
        named={
            name: NodeParameter(values=one.numel(), trained=one.requires_grad, label=labels.get(name, ""))
            for name, one in block.named_parameters()
        },
        several=several,
    )
    return measured, tuple(torch.empty_like(stream, device="meta").contiguous() for stream in outputs)


def _build_and_run(node: Node, inputs: Streams, device: str) -> tuple[Block, Streams, bool]:
    """Build a block and run it, and where the node is reversible its inverse; return also whether it is a head with `several` results."""
    shapes = _shapes(inputs)
    with torch.device(device):
        block = build_block(node, shapes)
        zeros = [torch.zeros(stream.shape, dtype=stream.dtype) for stream in inputs]
    with torch.no_grad(), frozen_statistics(block):
        with refusing(node, shapes, "raised in its forward", by_torch="cannot read its input"):
            returned = block(*zeros)
        with refusing(node, shapes, "is wrong"):
            outputs = checked_streams(returned)
        # A run brings real numbers to one type, so that no node is blamed for those of another.
        outputs = tuple(one.to(torch.float32) if one.is_floating_point() else one for one in outputs)
        if isinstance(block, Reversible) and node.kind == "reversible":
            with refusing(node, shapes, "cannot invert its output"):
                if (inverted := _shapes(checked_streams(block.invert(*outputs)))) != shapes:
                    raise TypeError(f"the inverse returned {listing(inverted)}, and not its inputs")
    with refusing(node, shapes, "raised in its `returned`"):
        several = isinstance(block, Head) and any(
            is_several(block.train(mode).returned(outputs)) for mode in (False, True)
        )
    return block, outputs, several


def checked_streams(returned: Any, batch: int = _BATCH) -> Streams:
    """Return what a block returned, if it is streams with the batch as their first dimension."""
    if not (returned and isinstance(returned, tuple) and all(isinstance(stream, Tensor) for stream in returned)):
        raise TypeError(f"it returned {type(returned).__name__}; a block returns a tensor or a tuple of tensors")
    for stream in returned:
        if not stream.dim() or len(stream) != batch:
            came = f"it returned a stream {list(stream.shape)} for {batch} samples"
            raise TypeError(f"{came}; the batch is a stream's first dimension")
    return returned


def _shapes(streams: Sequence[Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(stream.shape[1:]) for stream in streams)


# --- the parameters that a run begins with ---


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
        node = graph.nodes[name]
        assert node.plugin is not None
        # Nodes whose block has `drawn_as` are made by one constructor, and so draw the same.
        with fork_rng(random_key(seed, node.plugin.code.drawn_as or name, "initial"), torch.device("cpu")):
            return build_block(node, shapes[name].inputs)

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
