"""The output streams of every node, measured without memory.

Blocks are built and run on torch's meta device: shapes and dtypes are real, data is not. A block that the meta device
cannot build or run (it reads values) is built and run on the CPU, with a batch of two. Training builds its modules with
the same `build_block`, so the modules measured are the modules trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from attrs import evolve, field, frozen
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from petra_graph.blocks import Additive, Block, Head, Reversible, Shape, Streams, frozen_statistics
from petra_graph.blocks.parameter_groups import stated_fault
from petra_graph.blocks.tensor_faults import tensor_fault
from petra_graph.errors import PetraGraphError, PluginError, Problem, SpecError, at_path
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.kinds.author_code import author_line
from petra_graph.kinds.data_set import DataFacts
from petra_graph.kinds.plugin import load
from petra_graph.kinds.tensor_trees import is_several
from petra_graph.measure.meta_kernels import ShapesAlone
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.program.message_layout import StreamType

T = TypeVar("T")
_BATCH = 2
_BASES: Mapping[str, type] = {"reversible": Reversible, "head": Head, "buffered": Block}
"""The base class of a block, by the kind of its node; a buffered node takes any block."""


@frozen(kw_only=True)
class SharedParameter:
    """A parameter of one node that others have too."""

    label: str
    """Its one name in all of them, as in `Block.shared_parameters`."""
    values: int
    trained: bool
    """Whether this node trains it."""


@frozen(kw_only=True)
class NodeShapes:
    """Shapes of one node's streams, without the batch dimension, and its parameters."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...] = field(default=(), eq=False)
    """Element types of the outputs, as a network in float32 returns them."""
    parameters: int
    """Number of their values."""
    trained: Mapping[str, int] = field(factory=dict, eq=False)
    """Number of values of each parameter that is trained, by its name in the block."""
    additive: bool
    """Whether the block only adds to its streams, so that it is exact on a grid."""
    batch_norm: bool = field(default=False, eq=False)
    """Whether the block normalises over batches."""
    several: bool = field(default=False, eq=False)
    """Whether it is a head that gives the loss several tensors, or one in a structure."""
    shared: Mapping[str, SharedParameter] = field(factory=dict, eq=False)
    """Its parameters that other nodes have too, by their names in the block."""

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


def build_block(node: Node, inputs: Sequence[Shape]) -> Block:
    """Build a node's module on torch's current default device.

    Raises:
        SpecError: the block refuses these shapes or options.
        PluginError: the block's code cannot be imported, or is not a block of the node's kind.
    """
    assert node.plugin is not None
    with at_path(*node.path):
        block_class: type[Block] = load(node.plugin)
    all_inputs, inputs = inputs, node.read_by_block(inputs)
    _check_class(node, block_class, node.plugin.declaration.build)
    try:
        block = block_class(inputs, node.options)
        fault = stated_fault(block)
    except SpecError as error:
        raise SpecError(_of_node(node, problem) for problem in error.problems) from error
    except (KeyboardInterrupt, PetraGraphError):
        raise
    except BaseException as error:
        problem = _refused(node, inputs, "cannot be built", error)
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
    return _wrapped(node, block, all_inputs)


def _wrapped(node: Node, block: Block, inputs: Sequence[Shape]) -> Block:
    """Return a node's own block in its wrappers; `inputs` are the node's."""
    for place, wrapper in enumerate(node.wrappers):
        read = evolve(node, wrappers=node.wrappers[place + 1 :]).read_by_block(inputs)
        try:
            block = wrapper.wrap(block, read)
        except ValueError as error:
            raise SpecError(_refused(node, inputs, "cannot be changed", error)) from error
    return block


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


@uncompiled()
def measure_shapes(graph: NodeGraph, sample: Shape, dtype: torch.dtype) -> Mapping[str, NodeShapes]:
    """Run all nodes in order.

    Args:
        sample: one sample as the first node sees it, without the batch dimension.
        dtype: its element type as the first node sees it.

    Raises:
        SpecError: a block refuses its input, or its inverse does not return shapes. Nodes that follow a refusing block
            are not checked, since they have no input.
    """
    shapes: dict[str, NodeShapes] = {}
    memo = Memo[tuple[NodeShapes, Streams]]()
    streams: dict[str, Streams] = {INPUT: (torch.empty(_BATCH, *sample, dtype=dtype, device="meta"),)}
    problems: list[Problem] = []
    for name in graph.order:
        node = graph.nodes[name]
        if any(producer not in streams for producer in node.inputs):
            continue
        inputs = tuple(stream for producer in node.inputs for stream in streams[producer])
        key = (
            node.plugin,
            node.options,
            node.kind,
            node.wrappers,
            [(stream.shape, stream.dtype) for stream in inputs],
        )
        try:
            shapes[name], streams[name] = memo.get(key, partial(_measure, node, inputs))
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return shapes


def _check_class(node: Node, block_class: Any, build: str) -> None:
    """Check the base and the methods of a class, which torch's modules do not enforce as abstract classes do."""
    if any(wrapper.inverts for wrapper in node.wrappers):
        node = evolve(node, kind="buffered")  # what is around it has an inverse, whatever it is itself
    base = _BASES[node.kind]
    problem = None
    if not (isinstance(block_class, type) and issubclass(block_class, Block)):
        problem = (
            f"{build} is not a subclass of petra_graph.blocks.Block",
            "subclass AdditiveCoupling, Buffered or Head",
        )
    elif not issubclass(block_class, base):
        hint = "subclass AdditiveCoupling, or Reversible with an inverse" if base is Reversible else "subclass Head"
        problem = f'node "{node.name}" is {node.kind}, and {build} is not a subclass of {base.__name__}', hint
    elif missing := undefined_methods(block_class, node.kind):
        written = ", ".join(f"`{name}`" for name in missing)
        hint = 'write it, or set kind = "buffered"' if missing == ["inverse"] else f"write {written} in the class"
        problem = f"{build} does not define {written}", hint
    if problem is not None:
        message, hint = problem
        assert node.plugin is not None
        raise PluginError(Problem(message=f"{node.plugin.owned}: {message}", hint=hint, path=node.path))


def undefined_methods(block_class: type[Block], kind: str) -> list[str]:
    """Return the methods that a class must define for a node of this kind, and does not."""
    names = [name for name in dir(block_class) if getattr(getattr(block_class, name), "__isabstractmethod__", False)]
    return [name for name in names if name != "inverse" or kind == "reversible"]


def _measure(node: Node, inputs: Streams) -> tuple[NodeShapes, Streams]:
    shapes = _shapes(inputs)
    expected = node.declaration.streams if node.declaration else None
    given = len(node.read_by_block(inputs))
    if expected is not None and given != expected:
        message = f'node "{node.name}": block "{node.block}" reads {expected} streams, and its inputs carry {given}'
        hint = 'merge nodes read several streams (block = "add"); others read one node'
        if expected > given:
            hint = "a stem with streams = 2 feeds reversible blocks"
        raise SpecError(Problem(message=message, hint=hint, path=node.path))
    try:
        block, outputs = _try_out(node, inputs, "meta")
    except SpecError as error:
        if not needs_values(error.__cause__):
            raise
        with torch.random.fork_rng(devices=[]):
            block, outputs = _try_out(node, inputs, "cpu")
    if any(map(torch.is_floating_point, inputs)) and not any(map(torch.is_floating_point, outputs)):
        kinds = " and ".join(dict.fromkeys(str(stream.dtype).removeprefix("torch.") for stream in outputs))
        message = f'node "{node.name}": block "{node.block}" returns {kinds} alone, which has no gradient'
        hint = "return at least one floating-point stream: otherwise nothing below this node can learn"
        raise SpecError(Problem(message=message, hint=hint, path=node.path))
    measured = NodeShapes(
        inputs=shapes,
        outputs=_shapes(outputs),
        dtypes=tuple(stream.dtype for stream in outputs),
        parameters=sum(parameter.numel() for parameter in block.parameters()),
        trained={name: one.numel() for name, one in block.named_parameters() if one.requires_grad},
        additive=isinstance(block, Additive),
        shared={
            name: SharedParameter(label=block.shared_parameters[name], values=one.numel(), trained=one.requires_grad)
            for name, one in block.named_parameters()
            if name in block.shared_parameters
        },
        several=isinstance(block, Head)
        and any(is_several(block.train(mode).returned(outputs)) for mode in (False, True)),
        batch_norm=any(isinstance(module, _BatchNorm) for module in block.modules()),
    )
    return measured, tuple(stream.to("meta") for stream in outputs)


def _try_out(node: Node, inputs: Streams, device: Literal["meta", "cpu"]) -> tuple[Block, Streams]:
    """Build the block and run it; where the node is reversible, run its inverse too."""
    shapes = _shapes(inputs)
    with torch.device(device):
        block = build_block(node, shapes)
    try:
        outputs = _run(block, block, [torch.zeros_like(stream, device=device) for stream in inputs])
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SpecError(_refused(node, shapes, "cannot read its input", error)) from error
    if node.kind != "reversible":
        return block, outputs
    assert isinstance(block, Reversible)
    try:
        returned = _run(block, block.invert, outputs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SpecError(_refused(node, shapes, "cannot invert its output", error)) from error
    if _shapes(returned) != shapes:
        message = f'node "{node.name}": the inverse of block "{node.block}" returns {listing(_shapes(returned))}'
        hint = f'it must return the input streams, {listing(shapes)}, in their order; or set kind = "buffered"'
        raise SpecError(Problem(message=message, hint=hint, path=node.path))
    return block, outputs


def _run(block: Block, function: Callable[..., Any], streams: Sequence[Tensor]) -> Streams:
    with torch.no_grad(), frozen_statistics(block), ShapesAlone():  # type: ignore[no-untyped-call]
        result = function(*streams)
    if not isinstance(result, tuple) or not all(isinstance(stream, Tensor) for stream in result):
        message = f"it returned {type(result).__name__}; a block returns a tensor or a tuple of tensors"
        raise TypeError(message)
    if not result:
        raise TypeError("it returned no stream")
    samples = len(streams[0])
    for stream in result:
        if not stream.dim() or len(stream) != samples:
            message = f"it returned a stream {list(stream.shape)} for {samples} samples; the batch is a stream's first dimension"
            raise TypeError(message)
        if stream.is_complex():
            raise TypeError(f"it returned a stream of {stream.dtype}; streams are real: view them as pairs of numbers")
    return result


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


def _refused(node: Node, shapes: Sequence[Shape], what: str, error: BaseException) -> Problem:
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


def _shapes(streams: Sequence[Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(stream.shape[1:]) for stream in streams)


def outputs_for(facts: DataFacts) -> list[Shape]:
    """Return the shapes that a head's output may have for one sample, whose targets are classes; [] where they are not.

    With several targets a sample, the classes are a dimension before or behind theirs, as the loss reads them.
    """
    if facts.classes is None or facts.target_dtype != "int64":
        return []
    return list(dict.fromkeys([(facts.classes, *facts.target_shape), (*facts.target_shape, facts.classes)]))


def listing(shapes: Sequence[Shape]) -> str:
    """Return shapes as messages show them: "8x6x6, 8x6x6"."""
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) or "nothing"
