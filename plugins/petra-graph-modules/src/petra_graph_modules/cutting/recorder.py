"""One forward of a network while it is recorded: every torch function that it calls, and its units, as nodes of a graph.

What no graph of operations can hold is refused, with the line: a value that decides, a number drawn outside of torch, an autocast
region, a tensor that a module reads and is not given. Else the parts would compute something else, without a word.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import EllipsisType
from typing import Any
from unittest.mock import patch

import torch
from attrs import define, field
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode

from petra_graph.blocks.moving_state import State, moved, state_of
from petra_graph.kinds.generators import drawn_without_key, states_without_key
from petra_graph.units import listed
from petra_graph_modules.cutting.cannot_cut import CannotCut
from petra_graph_modules.cutting.operations import (
    Applied,
    Device,
    Draws,
    assigned,
    autocast_on,
    autocast_regions,
    is_fixed,
    is_method,
    running_line,
    tensors_in,
)
from petra_graph_modules.cutting.returned_structure import NoTensors, taken_apart

_READS = {"__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__"}
_READS |= {"item", "tolist", "numpy", "is_nonzero", "equal", "allclose", "__array__"}
"""Functions whose result is no tensor, and depends on values."""
_CHOOSES = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"}
"""Functions whose result has a shape that depends on values; so has `tensor[mask]`."""
_CHANGES_GRADIENTS = {"register_hook", "register_post_accumulate_grad_hook", "backward", "__set__"}
"""Functions that return no tensor, and change what a backward does, or what a tensor is."""
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format, EllipsisType, type(None))
OF_JIT = (
    "leave out torch.jit, or let a module of its own call what it has made, which is then one operation of the graph"
)
_APART = "put it into a module of its own, which is then one operation of the graph"


@define(eq=False)
class Recorder:
    """One forward while it is recorded."""

    network: nn.Module
    units: Mapping[nn.Module, str]
    """The modules that are one operation each, and their names."""
    names: Mapping[int, str]
    """Of parameters and buffers, by their identity."""
    device: str
    earlier: Mapping[int, fx.Node] = field(factory=dict)
    """The tensors that a forward before this one has made, which the network may have kept."""
    graph: fx.Graph = field(factory=fx.Graph)
    nodes: dict[int, fx.Node] = field(factory=dict)
    """By the identity of what each returned."""
    kept: dict[fx.Node, fx.Node] = field(factory=dict)
    """The nodes that stand for a tensor of the forward before, and that which made it."""
    _alive: list[Tensor] = field(factory=list)
    """So that no identity is given twice."""
    _containers: list[str] = field(factory=list)
    _given: set[int] | None = None
    """Within a unit: the tensors that it may read."""
    _inside: bool = False
    _states: dict[nn.Module, State] = field(factory=dict)
    """Of the units, as the forward found or left them."""
    _own: Mapping[nn.Module, set[int]] = field(factory=dict)
    """The parameters and buffers of the units."""
    _generators: Mapping[str, Any] = field(factory=states_without_key)
    _seed: int = field(factory=torch.initial_seed)
    _autocast: Sequence[bool] = field(factory=autocast_on)
    _regions: int = field(factory=autocast_regions)
    _draws: Draws = field(factory=Draws)

    @contextmanager
    def on(self, samples: Sequence[Tensor]) -> Iterator[None]:
        """Record what is called within the context."""
        paths = {module: name for name, module in self.network.named_modules()}
        call, apply, switch = nn.Module.__call__, vars(torch.autograd.Function)["apply"], torch.autocast.__init__
        self._states = {unit: state_of(unit) for unit in self.units}
        self._own = {unit: {id(one) for one in [*unit.parameters(), *unit.buffers()]} for unit in self.units}

        def recorded_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._inside or module not in paths:
                return call(module, *args, **kwargs)
            if module in self.units:
                return self._unit(module, call, args, kwargs)
            if module._backward_hooks or module._backward_pre_hooks:  # noqa: SLF001  no public way to ask
                hint = (
                    "register them on the modules that are nodes, or write a torch.autograd.Function with that backward"
                )
                raise CannotCut(f"{paths[module] or 'the network'} has backward hooks, and is in several nodes", hint)
            self._containers.append(paths[module])
            try:
                return call(module, *args, **kwargs)
            finally:
                self._containers.pop()

        def recorded_apply(of: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            function = apply.__get__(None, of)
            if self._inside:
                return function(*args, **kwargs)
            create = partial(self._created, "call_function", Applied(of))
            return self._operation(function, args, kwargs, create)

        def entered_here(region: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
            switch(region, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

        for at, tensor in enumerate(samples):
            self._known(tensor, self.graph.placeholder(f"samples{at}"))
        with (
            patch.object(nn.Module, "__call__", recorded_call),
            patch.object(torch.autograd.Function, "apply", classmethod(recorded_apply)),
            patch.object(torch.autocast, "__init__", entered_here),
            _Functions(self),
            self._draws,
        ):
            yield

    def end(self, output: object) -> None:
        """Write down what the forward returned: its tensors, and its structure with their numbers in their places."""
        try:
            tensors, structure = taken_apart(output)
        except NoTensors as error:
            message = f"its forward returns {error}, and the loss reads tensors, which may be in tuples, lists and dictionaries"
            hint = "write a module around it whose forward returns what the loss reads, as in `return self.model(x).logits`"
            raise CannotCut(message, hint) from None
        self._expect_none_drawn()
        nodes = tuple(map(self._of_tensor, tensors))
        self.graph.output(nodes[0] if structure == 0 else nodes).meta["structure"] = structure

    def called(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a torch function, and write it down if it makes or changes a tensor."""
        if self._inside:
            self._expect_given(args, kwargs)
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if name in _CHANGES_GRADIENTS:
            named = f"sets {function.__self__.__name__} of a tensor" if name == "__set__" else f"calls {name}"
            raise CannotCut(f"its forward {named}, which no graph of operations can hold", _APART)
        if isinstance(function, torch._ops.OpOverload) and function.namespace == "aten":  # noqa: SLF001
            raise CannotCut(f"its forward calls {function}, as what torch.jit has made does", OF_JIT)
        masks = [one for one in tensors_in(args[1:]) if one.dtype == torch.bool] if name == "__getitem__" else []
        decisive = masks or (args if name in _READS | _CHOOSES else ())
        if any(id(one) in self.nodes for one in tensors_in(decisive)):
            values = map_aggregate(tuple(decisive), lambda one: self._constant(one, name))
            if name in _READS:
                return self._quietly(function, values, kwargs)
        return self._operation(function, args, kwargs, partial(self._node, function, name), name)

    def _operation(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        create: Callable[[tuple[Any, ...], dict[str, Any]], fx.Node],
        name: str = "",
    ) -> Any:
        """Run an operation, and let `create` write it down with its arguments."""
        before = [(one, one._version) for one in tensors_in((args, kwargs))]  # noqa: SLF001  torch's own count of changes in place
        self._draws.any = False
        result = self._quietly(function, args, kwargs)
        if next(tensors_in(result), None) is None and name != "__setitem__":
            return result
        given, named = tuple(map(self._argument, args)), {key: self._argument(one) for key, one in kwargs.items()}
        node = create(given, named)
        node.meta["random"] = self._draws.any
        changed = [one for one, version in before if one._version != version]  # noqa: SLF001
        node.meta["changes"] = tuple(self.nodes[id(one)] for one in changed if id(one) in self.nodes)
        if not torch.is_grad_enabled() and any(one.requires_grad for one in changed):
            hint = "write to a copy: x + (y - x).detach() has the values of y and the gradient of x"
            raise CannotCut("its forward changes in place, without gradients, a tensor that has a gradient", hint)
        if name == "__setitem__":
            self._known(args[0], node)
        else:
            self._results(node, result)
        return result

    def _node(self, function: Any, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> fx.Node:
        if name == "__get__":
            return self._created("call_function", getattr, (given[0], function.__self__.__name__), {})
        if name == "__setitem__":
            return self._created("call_function", assigned, given, named)
        if name == "__getitem__":
            return self._created("call_function", operator.getitem, given, named)
        if isinstance(getattr(Tensor, name, None), Callable) and is_method(function):  # type: ignore[arg-type]
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
        name = self.units[module]
        self._expect_none_drawn()
        before, now = self._states[module], self._quietly(state_of, (module,), {})
        if names := [*moved(before, now), *(now.keys() - before.keys())]:
            hint = f"give it to {name} as an argument, or set it in __init__"
            raise CannotCut(f"its forward sets {listed(names)} of {name}, which the node of {name} does not see", hint)

        def run(*all_args: Any, **named: Any) -> Any:
            self._given = self._own[module] | {id(one) for one in tensors_in((all_args, named))}
            return call(module, *all_args, **named)

        def create(given: tuple[Any, ...], named: dict[str, Any]) -> fx.Node:
            node = self._created("call_module", name, given, named)
            node.meta["container"] = name.rpartition(".")[0]
            node.meta["inplace"] = bool(getattr(module, "inplace", False))
            node.meta["writes"] = versions != [one._version for one in module.buffers()]  # noqa: SLF001
            return node

        versions = [one._version for one in module.buffers()]  # noqa: SLF001

        self._argument((args, kwargs))  # what no graph can hold is told before the module fails of it
        try:
            result = self._operation(run, args, kwargs, create)
        finally:
            self._given = None
        self._states[module], self._generators = self._quietly(state_of, (module,), {}), states_without_key()
        return result

    def _expect_given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Within a unit: expect that it reads its own parameters and buffers and what it is given, since its node has no others."""
        if (given := self._given) is None:
            return
        for one in tensors_in((args, kwargs)):
            if id(one) not in given and (id(one) in self.names or id(one) in self.nodes):
                what = self.names.get(id(one), "a tensor of the network's forward")
                hint = (
                    "give the module what it reads as an argument of its forward, or let it hold the parameter itself"
                )
                raise CannotCut(f"a module reads {what}, which it neither holds nor is given", hint)

    def _quietly(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._inside = True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside = False

    def _created(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        line = running_line()
        self._expect_none_drawn()
        if self._autocast != autocast_on():
            hint = f'leave it out, and set precision.compute = "bfloat16", which all nodes compute in; or {_APART}, and returns float32'
            raise CannotCut("its forward switches torch.autocast, which nodes would not do", hint)
        node = self.graph.create_node(op, target, args, kwargs)
        # A region that leaves autocast as it is, which is off here, is one that switches it off.
        off = autocast_regions() > self._regions
        node.meta.update(container=self._containers[-1], line=line, random=False, float32=off)
        return node

    def _expect_none_drawn(self) -> None:
        if torch.initial_seed() != self._seed:
            raise CannotCut(
                "its forward seeds torch's generator, which has a key for each node and micro-batch", "seed nothing"
            )
        if drawn := drawn_without_key(self._generators):
            hint = (
                "draw with torch, and not in evaluation: x + F.dropout(x.new_ones(1), 0.1, self.training) * self.layer(x) drops a layer; "
                "or draw in a module of its own"
            )
            raise CannotCut(f"its forward draws random numbers from {' and '.join(drawn)}, here or before", hint)

    def _results(self, node: fx.Node, result: Any) -> None:
        """Write down each tensor of what an operation returned."""
        if isinstance(result, Tensor):
            self._known(result, node)
            if not torch.is_grad_enabled():
                self._known(result, self._created("call_method", "detach", (node,), {}))
            return
        node.meta["several"] = True
        if not isinstance(result, Mapping | tuple | list):
            hint = "return tensors, in tuples, lists or dictionaries"
            raise CannotCut(f"{node.target} returns {type(result).__name__}", hint)
        items: Any = result.items() if isinstance(result, Mapping) else enumerate(result)
        for key, value in items:
            if next(tensors_in(value), None) is not None:
                self._results(self._created("call_function", operator.getitem, (node, key), {}), value)

    def _known(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta.update(shape=tuple(tensor.shape), complex=tensor.is_complex())
        self.nodes[id(tensor)] = node
        self._alive.append(tensor)

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
        if id(tensor) not in self.nodes and id(tensor) in self.names:
            self._known(tensor, self.graph.get_attr(self.names[id(tensor)]))
            self.nodes[id(tensor)].meta["parameter"] = isinstance(tensor, nn.Parameter)
        if id(tensor) not in self.nodes and id(tensor) in self.earlier:
            made = self.earlier[id(tensor)]
            if not is_fixed(made):
                hint = "let the forward follow from the samples alone"
                raise CannotCut("its forward reads a tensor that it has kept from the call before", hint)
            self._known(tensor, self.graph.placeholder("kept"))
            self.kept[self.nodes[id(tensor)]] = made
        if id(tensor) not in self.nodes:
            hint = (
                "register it, as in self.register_buffer(name, tensor, persistent=False), or compute it in the forward; "
                "let a module return what the forward reads of its inside, and call torch.vmap and others of torch.func there"
            )
            raise CannotCut(
                "its forward reads a tensor that is neither a parameter, nor a buffer, nor made from its input", hint
            )
        return self.nodes[id(tensor)]


class _Functions(TorchFunctionMode):
    """Gives each torch function to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.recorder.called(func, args, kwargs or {})
