"""A module's forward as a graph of operations, recorded while it runs on samples without values.

The forward runs as it is, on torch's meta device, and every torch function that it calls is written down; modules that are *units* are
one operation each. Python runs for real, so branches on options and sizes, loops over lists of modules and dictionaries of outputs need
no rewriting. What depends on a tensor's values cannot be recorded, and is refused with the line.

Decision: neither `torch.fx.symbolic_trace` nor `torch.export`. The first gives the forward proxies, which are no tensors: `isinstance`,
`torch.arange(x.shape[1], device=x.device)` and branches on sizes fail. The second runs it for real, but returns operations of
aten: batch normalisations, embeddings and dropout are no modules any more, on which weight decay, running statistics and the difference between
training and evaluation depend. The result is a graph of torch.fx.

A forward is recorded with two sizes of batch, and once more with another length for samples that are tokens; numbers that follow from
these are computed again when the graph runs. It is recorded in training and in evaluation, which may give other arguments to the same operations.
"""

from __future__ import annotations

import copy
import operator
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import EllipsisType
from typing import Any
from unittest.mock import patch

import torch
from attrs import define, field, frozen
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode

from petra_graph.kinds.author_code import author_line, is_author_code

_READS = {"__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__"}
_READS |= {"item", "tolist", "numpy", "is_nonzero", "equal", "allclose", "__array__"}
"""Functions whose result is no tensor, and depends on values."""
_CHOOSES = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"}
"""Functions whose result has a shape that depends on values; so has `tensor[mask]`."""
_RANDOM = ("rand", "bernoulli", "dropout", "normal", "multinomial", "poisson")
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format, EllipsisType, type(None))
_BATCHES = (3, 5)


class CannotCut(Exception):
    """A network cannot be cut; the message says why, and where."""

    def __init__(self, message: str, hint: str = "", *, of_list: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.of_list = of_list
        """Whether the list of modules that are nodes is at fault."""


@frozen
class Size:
    """A number that follows from the sizes of a batch: constant + of_n n + of_t t + of_both n t, of n samples of length t."""

    constant: int
    of_n: int
    of_t: int = 0
    of_both: int = 0

    @property
    def of_length(self) -> bool:
        return bool(self.of_t or self.of_both)

    def __call__(self, n: int, t: int) -> int:
        return self.constant + self.of_n * n + self.of_t * t + self.of_both * n * t


@frozen
class Device:
    """The device on which the network runs."""


@frozen(eq=False)
class RecordedForward:
    """The operations of a forward. Arguments may be `Size` and `Device`."""

    training: fx.Graph
    evaluation: fx.Graph
    """The same operations, whose other arguments may differ."""


def recorded(
    network: nn.Module, units: Mapping[nn.Module, str], sample: Sequence[int], dtype: torch.dtype
) -> RecordedForward:
    """Record the forward of a network.

    Args:
        network: its parameters may be on the meta device; they are not changed.
        units: the modules that are one operation each, and their names.
        sample: the shape of a sample, without the batch.
        dtype: of the samples.

    Raises:
        CannotCut: the forward depends on values, or fails.
    """
    lengths = [sample[0], sample[0] - 1] if dtype == torch.int64 and sample and sample[0] > 1 else []

    def graphs(*, train: bool) -> dict[tuple[int, int], fx.Graph]:
        sizes = [(n, t) for t in (lengths or [0]) for n in _BATCHES]
        found: dict[tuple[int, int], fx.Graph] = {}
        for n, t in sizes:
            shape = (n, t, *sample[1:]) if lengths else (n, *sample)
            try:
                found[n, t] = _run(network, units, shape, dtype, train=train)
            except CannotCut:
                if not lengths or t == lengths[0]:
                    raise
        return found

    training, evaluation = graphs(train=True), graphs(train=False)
    made = RecordedForward(_joined(training), _joined(evaluation))
    _expect_alike(made.training, made.evaluation, "in training and in evaluation")
    return made


def _run(
    network: nn.Module, units: Mapping[nn.Module, str], shape: Sequence[int], dtype: torch.dtype, *, train: bool
) -> fx.Graph:
    try:
        return _recording(network, units, shape, dtype, "meta", train=train)
    except CannotCut as error:
        if not _needs_values(error.__cause__):
            raise
    return _recording(network, units, shape, dtype, "cpu", train=train)


def _needs_values(error: BaseException | None) -> bool:
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


def _recording(
    network: nn.Module,
    units: Mapping[nn.Module, str],
    shape: Sequence[int],
    dtype: torch.dtype,
    device: str,
    *,
    train: bool,
) -> fx.Graph:
    held = dict(network.named_parameters(remove_duplicate=False)) | dict(network.named_buffers(remove_duplicate=False))
    memo: dict[int, Any] = {}
    names: dict[int, str] = {}
    for name, tensor in held.items():
        if id(tensor) not in memo:
            values = torch.zeros_like(tensor, device=device)
            memo[id(tensor)] = (
                nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values
            )
            names[id(memo[id(tensor)])] = name
    twin = copy.deepcopy(network, memo).train(train)
    recorder = _Recorder(twin, {twin.get_submodule(name): name for name in units.values()}, names, device)
    sample = torch.zeros(*shape, dtype=dtype, device=device)
    try:
        with torch.random.fork_rng(devices=[]), recorder.on(sample):
            recorder.end(twin(sample))
    except CannotCut as error:
        at = author_line(error)
        raise CannotCut(f"{at}: {error}" if at else str(error), error.hint) from error.__cause__
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        at = author_line(error)
        reason += _layer_at_fault(twin, error)
        hint = f"it runs on {list(shape)} of {dtype}, of which {shape[0]} are the batch"
        raise CannotCut(f"{f'{at}: ' if at else ''}its forward fails: {reason}", hint) from error
    return recorder.graph


def _layer_at_fault(network: nn.Module, error: Exception) -> str:
    """Return the innermost layer with weights that raised an error, with its sizes: torch's words on meta tensors have none."""
    names, found = {id(module): name for name, module in network.named_modules()}, ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        layer, given = (frame.f_locals.get(name) for name in ("self", "input"))
        weight = getattr(layer, "weight", None)
        if id(layer) in names and isinstance(weight, Tensor) and isinstance(given, Tensor):
            found = f" in {names[id(layer)] or 'the network'}, {layer}, whose weight is {list(weight.shape)}, on an input of {list(given.shape)}"
    return found


@define(eq=False)
class _Recorder:
    """One forward while it is recorded."""

    network: nn.Module
    units: Mapping[nn.Module, str]
    names: Mapping[int, str]
    """Of parameters and buffers, by their identity."""
    device: str
    graph: fx.Graph = field(factory=fx.Graph)
    _nodes: dict[int, fx.Node] = field(factory=dict)
    _alive: list[Tensor] = field(factory=list)
    """So that no identity is given twice."""
    _containers: list[str] = field(factory=list)
    _inside: bool = False

    @contextmanager
    def on(self, sample: Tensor) -> Iterator[None]:
        """Record what is called within the context."""
        paths = {module: name for name, module in self.network.named_modules()}
        call = nn.Module.__call__

        def recorded_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._inside or module not in paths:
                return call(module, *args, **kwargs)
            if module in self.units:
                return self._unit(module, call, args, kwargs)
            self._containers.append(paths[module])
            try:
                return call(module, *args, **kwargs)
            finally:
                self._containers.pop()

        self._known(sample, self.graph.placeholder("samples"))
        with patch.object(nn.Module, "__call__", recorded_call), _Functions(self):
            yield

    def end(self, output: object) -> None:
        """Write down what the forward returned."""
        if not isinstance(output, Tensor):
            hint = "write a module around it whose forward returns the tensor that the loss reads, as in `return self.model(x).logits`"
            raise CannotCut(f"its forward returns {type(output).__name__}, and the loss reads one tensor", hint)
        self.graph.output(self._argument(output))

    def called(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a torch function, and write it down if it makes or changes a tensor."""
        if self._inside:
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        masks = [one for one in _tensors(args[1:]) if one.dtype == torch.bool] if name == "__getitem__" else []
        decisive = masks or (args if name in _READS | _CHOOSES else ())
        if any(id(one) in self._nodes for one in _tensors(decisive)):
            values = map_aggregate(tuple(decisive), lambda one: self._constant(one, name))
            if name in _READS:
                return self._quietly(function, values, kwargs)
        before = [(one, one._version) for one in _tensors((args, kwargs))]  # noqa: SLF001  torch's own count of changes in place
        grad = torch.is_grad_enabled()
        result = self._quietly(function, args, kwargs)
        if next(_tensors(result), None) is None and name != "__setitem__":
            return result
        node = self._node(function, name, args, kwargs)
        self._changed(node, before)
        if name == "__setitem__":
            self._known(args[0], node)
        elif not grad and node.op != "placeholder":
            self._results(self.graph.call_method("detach", (node,)) if isinstance(result, Tensor) else node, result)
        else:
            self._results(node, result)
        return result

    def _node(self, function: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> fx.Node:
        given, named = self._arguments(args, kwargs)
        if name == "__get__":
            return self._created("call_function", getattr, (given[0], function.__self__.__name__), {})
        if name == "__setitem__":
            return self._created("call_function", assigned, given, named)
        if name == "__getitem__":
            return self._created("call_function", operator.getitem, given, named)
        if isinstance(getattr(Tensor, name, None), Callable) and _is_method(function):  # type: ignore[arg-type]
            return self._created("call_method", name, given, named)
        return self._created("call_function", function, given, named)

    def _constant(self, value: Any, reader: str) -> Any:
        """Return a tensor that follows from sizes alone with its values, which a branch reads; other arguments as they are.

        Raises:
            CannotCut: it follows from the samples or from parameters.
        """
        if isinstance(value, Tensor):
            value = self._of_tensor(value)
        if isinstance(value, Device):
            return torch.device("cpu")
        if not isinstance(value, fx.Node):
            return value
        args: Any = map_aggregate(value.args, lambda one: self._constant(one, reader))
        kwargs: Any = map_aggregate(dict(value.kwargs), lambda one: self._constant(one, reader))
        target: Any = value.target
        if value.op == "call_function" and not value.meta["random"]:
            return self._quietly(target, args, kwargs)
        if value.op == "call_method" and not value.meta["random"]:
            return self._quietly(getattr(args[0], target), args[1:], kwargs)
        hint = "choose by a tensor, as in torch.where, or put what chooses into a module of its own and let that be one node"
        raise CannotCut(f"its forward depends on the values of a tensor, by {reader.strip('_')}", hint)

    def _unit(self, module: nn.Module, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        before = [(one, one._version) for one in _tensors((args, kwargs))]  # noqa: SLF001
        result = self._quietly(call, (module, *args), kwargs)
        given, named = self._arguments(args, kwargs)
        node = self._created("call_module", self.units[module], given, named)
        node.meta["container"] = self.units[module].rpartition(".")[0]
        node.meta["inplace"] = bool(getattr(module, "inplace", False))
        self._changed(node, before)
        self._results(node, result)
        return result

    def _quietly(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._inside = True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside = False

    def _created(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        node = self.graph.create_node(op, target, args, kwargs)
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        node.meta.update(container=self._containers[-1], line=_line(), random=name.startswith(_RANDOM))
        return node

    def _results(self, node: fx.Node, result: Any) -> None:
        """Write down each tensor of what an operation returned."""
        if isinstance(result, Tensor):
            self._known(result, node)
            return
        node.meta["several"] = True
        if not isinstance(result, Mapping | tuple | list):
            hint = "return tensors, in tuples, lists or dictionaries"
            raise CannotCut(f"{node.target} returns {type(result).__name__}", hint)
        items: Any = result.items() if isinstance(result, Mapping) else enumerate(result)
        for key, value in items:
            if next(_tensors(value), None) is not None:
                self._results(self._created("call_function", operator.getitem, (node, key), {}), value)

    def _known(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta["shape"] = tuple(tensor.shape)
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def _changed(self, node: fx.Node, before: Sequence[tuple[Tensor, int]]) -> None:
        """Remember which tensors an operation has changed in place."""
        changed = [one for one, version in before if one._version != version]  # noqa: SLF001
        node.meta["changes"] = tuple(self._nodes[id(one)] for one in changed if id(one) in self._nodes)

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(self._argument, args)), {name: self._argument(value) for name, value in kwargs.items()}

    def _argument(self, value: Any) -> Any:
        return map_aggregate(value, self._leaf)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._of_tensor(value)
        if isinstance(value, torch.device) or (isinstance(value, str) and value == self.device):
            return Device()
        if not isinstance(value, _PLAIN):
            hint = "give tensors and plain values, or let the module around it be one node"
            raise CannotCut(f"its forward hands on {type(value).__name__}, which no graph of operations can hold", hint)
        return value

    def _of_tensor(self, tensor: Tensor) -> fx.Node:
        if id(tensor) not in self._nodes and id(tensor) in self.names:
            self._known(tensor, self.graph.get_attr(self.names[id(tensor)]))
        if id(tensor) not in self._nodes:
            hint = (
                "register it, as in self.register_buffer(name, tensor, persistent=False), or compute it in the forward"
            )
            raise CannotCut(
                "its forward reads a tensor that is neither a parameter, nor a buffer, nor made from its input", hint
            )
        return self._nodes[id(tensor)]


class _Functions(TorchFunctionMode):
    """Gives each torch function to a recorder."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.called(func, args, kwargs or {})


def assigned(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """Return a tensor after `tensor[index] = value`."""
    tensor[index] = value
    return tensor


def _is_method(function: Any) -> bool:
    of = getattr(function, "__objclass__", None) or getattr(function, "__module__", None)
    return of is torch._C.TensorBase or of == "torch._tensor"  # noqa: SLF001  where torch has the methods of tensors


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in an operation's arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _tensors(one)


def _line() -> str:
    """Return the line of the author's code that is running."""
    frame = sys._getframe()  # noqa: SLF001  Python's documented way to the callers of a function
    while frame.f_back is not None and not is_author_code(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _joined(graphs: Mapping[tuple[int, int], fx.Graph]) -> fx.Graph:
    """Return one graph of those recorded with several sizes, with the numbers that follow from sizes as `Size`."""
    (first, one), *others = graphs.items()
    alike = [(first, one)]
    for sizes, graph in others:
        try:
            _expect_alike(one, graph, "with other sizes of the batch")
        except CannotCut:
            if sizes[1] == first[1]:
                raise
            continue  # the network reads samples of one length alone
        alike.append((sizes, graph))
    if len({t for (_, t), _ in alike}) > 1 and len(alike) < 2 * len(_BATCHES):
        alike = [(sizes, graph) for sizes, graph in alike if sizes[1] == first[1]]
    if len(alike) > len(_BATCHES):
        try:
            return _merged(alike)
        except CannotCut:
            alike = alike[: len(_BATCHES)]
    return _merged(alike)


def _merged(alike: Sequence[tuple[tuple[int, int], fx.Graph]]) -> fx.Graph:
    one = alike[0][1]
    changes = []
    for nodes in zip(*[graph.nodes for _, graph in alike], strict=True):
        sizes = [sizes for sizes, _ in alike]

        def value(*values: Any, node: fx.Node = nodes[0], sizes: Sequence[tuple[int, int]] = sizes) -> Any:
            return _size(values, sizes, node)

        args = _zipped(value, [node.args for node in nodes])
        kwargs = _zipped(value, [dict(node.kwargs) for node in nodes])
        changes.append((nodes[0], args, kwargs))
        if "shape" in nodes[0].meta:
            nodes[0].meta.update(_layout([node.meta["shape"] for node in nodes], sizes))
    for node, args, kwargs in changes:
        node.meta["args"], node.meta["kwargs"] = args, kwargs
    return one


def _layout(shapes: Sequence[tuple[int, ...]], sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return where a value has its samples.

    Returns:
        `samples`: the dimension that has them, alone or times another number, as in [t, n, width] and [n t, width]; None: all samples share it.
        `rows`: whether it is [n, ...].
        `length`: whether a row of it is [t, ...].
    """
    found: dict[int, float] = {}
    for at, lengths in enumerate(zip(*shapes, strict=False)):
        times = {(length / n, t) for length, (n, t) in zip(lengths, sizes, strict=True)}
        if lengths[0] and len(times) == len({t for _, t in sizes}) and all(one.is_integer() for one, _ in times):
            found[at] = max(one for one, _ in times)
    samples = min(found, key=found.__getitem__, default=None)
    rows = samples == 0 and found[0] == 1
    of_row = [
        shape[1:2] if rows else (shape[0] // n,) if samples == 0 else shape[:1]
        for shape, (n, _) in zip(shapes, sizes, strict=True)
    ]
    return {"samples": samples, "rows": rows, "length": of_row == [(t,) for _, t in sizes]}


def _zipped(function: Callable[..., Any], values: Sequence[Any]) -> Any:
    """Apply a function to the plain values at each place of several like structures; nodes are those of the first."""
    first = values[0]
    if isinstance(first, fx.Node):
        return first
    if isinstance(first, tuple | list) and len({len(one) for one in values}) == 1:
        items = [_zipped(function, list(item)) for item in zip(*values, strict=True)]
        return tuple(items) if isinstance(first, tuple) else items
    if isinstance(first, dict):
        return {key: _zipped(function, [one[key] for one in values]) for key in first}
    if isinstance(first, slice):
        parts = [_zipped(function, [getattr(one, name) for one in values]) for name in ("start", "stop", "step")]
        return slice(*parts)
    return function(*values)


def _size(values: Sequence[Any], sizes: Sequence[tuple[int, int]], node: fx.Node) -> Any:
    if all(type(one) is type(values[0]) and one == values[0] for one in values):
        return values[0]
    if all(type(one) is int for one in values):
        basis = [[1, n, *([t, n * t] if len(values) > len(_BATCHES) else [])] for n, t in sizes]
        found = Size(
            *map(round, torch.linalg.solve(torch.tensor(basis).double(), torch.tensor(values).double()).tolist())
        )
        if [found(*one) for one in sizes] == list(values):
            return found
    raise CannotCut(
        f"{node.meta.get('line', '')}: an argument follows from the size of the batch, as {values[0]!r} and {values[1]!r}"
    )


def _expect_alike(one: fx.Graph, other: fx.Graph, when: str) -> None:
    hint = "put what differs into a module of its own, which is then one operation of the graph"
    for first, second in zip(one.nodes, other.nodes, strict=False):
        if (first.op, first.target) != (second.op, second.target):
            raise CannotCut(f"{first.meta.get('line', '')}: its forward does other operations {when}", hint)
    if len(one.nodes) != len(other.nodes):
        raise CannotCut(f"its forward does other operations {when}", hint)
