"""A network built once a process and cut, and its parts copied out with values of their own.

Initial values are drawn for each node under the node's own random numbers, as those of any block: what the constructor would draw is held back
(`deferred_values`) and drawn for one part alone. A constructor that reads what it has drawn, as an orthogonal initialisation does, runs
again for each node.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from petra_graph.measure.without_compiler import uncompiled
from petra_graph.units import listed
from petra_graph_modules.cutting.cannot_cut import CannotCut
from petra_graph_modules.cutting.deferred_values import DeferredValues, Steps, carry_out
from petra_graph_modules.cutting.part_graph import make_part_graph, only_reads
from petra_graph_modules.cutting.parts import Part, parts_of
from petra_graph_modules.cutting.recorded_forward import Input, RecordedForward, names_in_forward, recorded
from petra_graph_modules.cutting.unfit_modules import expect_fit
from petra_graph_modules.cutting.units import units_of

Forward = Callable[..., tuple[Tensor, ...]]


@frozen(eq=False)
class HeldNetwork:
    """A network whose drawn values are held back."""

    module: nn.Module
    """Tensors without values are on torch's meta device."""
    build: Callable[[], nn.Module]
    steps: Mapping[int, Steps]
    """What draws the values of a tensor, by its identity; the others have theirs."""
    drawn_at_once: bool
    """Whether the constructor has drawn values that could not be held back."""

    @classmethod
    def of(cls, build: Callable[[], nn.Module]) -> HeldNetwork:
        """Build a network on the CPU, without a change of torch's random numbers."""
        held = DeferredValues()
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), held:
            module = build()
        expect_fit(module)
        steps: dict[int, Steps] = {}
        replaced: dict[int, Tensor] = {}
        for name, tensor in list(_names_of(module)):  # a list holds them: no identity is given twice
            if id(tensor) not in replaced and (drawn := held.take(tensor)):
                replaced[id(tensor)] = _like(tensor, torch.empty_like(tensor, device="meta"))
                steps[id(replaced[id(tensor)])] = drawn
            if id(tensor) in replaced:
                path, _, last = name.rpartition(".")
                setattr(module.get_submodule(path), last, replaced[id(tensor)])
        return cls(module, build, steps, held.drawn_at_once)


@define(eq=False)
class CutNetwork:
    """A network and its parts."""

    held: HeldNetwork
    forward: RecordedForward
    parts: Mapping[str, Part]
    """By name, in order."""
    unlike: Mapping[bool, Collection[str]] = field(factory=lambda: {True: (), False: ()})
    """In training, and in evaluation: the modules that the network's own `train` puts into the other mode, by name."""
    names: Sequence[str] = ()
    """By which its forward is given its inputs; (): in their order."""

    @cached_property
    def make_whole(self) -> Callable[[], nn.Module]:
        """A function that makes the uncut network, which reads its inputs in their order."""
        if not self.names:
            return self.held.build

        def make() -> nn.Module:
            network = self.held.build()
            give_names = lambda _module, read, _kwargs: ((), dict(zip(self.names, read, strict=True)))  # noqa: E731
            network.register_forward_pre_hook(give_names, with_kwargs=True)
            return network

        return make

    @cached_property
    def shared(self) -> Mapping[str, Mapping[str, str]]:
        """By part, its parameters and buffers that another part has too, with one name for each in all parts."""
        first: dict[int, str] = {}
        for name, tensor in _names_of(self.held.module):
            first.setdefault(id(tensor), name)
        own = {part: {key: first[id(tensor)] for key, tensor in read.items()} for part, read in self._read.items()}
        owners = Counter(one for names in own.values() for one in set(names.values()))
        return {part: {key: one for key, one in names.items() if owners[one] > 1} for part, names in own.items()}

    @cached_property
    def unread(self) -> Mapping[str, Mapping[str, Tensor]]:
        """By part, what the network has under names that no forward reads: second names belong to the part that has the tensor.

        The last part has what no part has, so that all nodes together have the network's `state_dict`.
        """
        names = {name for read in self._read.values() for name in read}
        owners = {id(tensor): part for part, read in reversed(self._read.items()) for tensor in read.values()}
        found: dict[str, dict[str, Tensor]] = {part: {} for part in self.parts}
        for name, tensor in _names_of(self.held.module):
            if name not in names:
                found[owners.get(id(tensor), list(self.parts)[-1])][name] = tensor
        return found

    @cached_property
    def _read(self) -> dict[str, dict[str, Tensor]]:
        """By part, the parameters and buffers that its forward reads."""
        return {part.name: dict(_names_of(self.graph_of(part, train=True))) for part in self.parts.values()}

    def draws(self, part: Part) -> bool:
        """Whether an operation of a part draws random numbers, in training or in evaluation; its modules are asked themselves."""
        operations = [one for one in part.operations if one.op != "call_module"]
        twins = [twin for one in operations if (twin := self.forward.twins.get(one)) is not None]
        return any(one.meta.get("random") for one in (*operations, *twins))

    def graph_of(self, part: Part, *, train: bool) -> fx.GraphModule:
        """Return a part as a module of torch.fx, whose tensors are those of the network."""
        twins = {node: node for node in self.forward.training.nodes} if train else self.forward.twins
        returns = part.returns
        if not train and part is list(self.parts.values())[-1]:
            count = 1 + max(leaf for leaf in tree_leaves(self.forward.returns[False]) if leaf is not None)
            returns = returns[:count]
        return fx.GraphModule(self.held.module, make_part_graph(part, twins, returns))


@uncompiled()
def cut_network(build: Callable[[], nn.Module], inputs: Sequence[Input], listed: Sequence[str] = ()) -> CutNetwork:
    """Build a network and cut it.

    Args:
        build: makes the network, with new parameters at each call.
        inputs: what it reads of a sample.
        listed: as for `units_of`.

    Raises:
        CannotCut: the network cannot be cut; the message says where and why.
    """
    held = HeldNetwork.of(build)
    unlike = {mode: _unlike(held.module, mode=mode) for mode in (False, True)}
    units = units_of(held.module, listed)
    names = names_in_forward(held.module, inputs)
    forward = recorded(held.module, units.names, inputs, names)
    parts = parts_of(held.module, forward.training, units.nodes.__contains__)
    _expect_one_writer(parts)
    return CutNetwork(held, forward, {part.name: part for part in parts}, unlike, names)


def _expect_one_writer(parts: Sequence[Part]) -> None:
    """Expect that no module that writes to its buffers, as batch normalisation does, is in several parts: each would have its own."""
    writers = Counter(
        name for part in parts for name in {str(one.target) for one in part.operations if one.meta.get("writes")}
    )
    if several := [name for name, count in writers.items() if count > 1]:
        message = f"{listed(several)} is called in several nodes, and writes to buffers, of which each node would have its own"
        raise CannotCut(message, "make one module for each call, or put all calls into a module of their own")


def _unlike(network: nn.Module, *, mode: bool) -> frozenset[str]:
    before = [(name, one, one._version) for name, one in _names_of(network)]  # noqa: SLF001
    network.train(mode)
    after = [(name, one, one._version) for name, one in _names_of(network)]  # noqa: SLF001
    if written := [old[0] for old, new in zip(before, after, strict=True) if old[1] is not new[1] or old[2] != new[2]]:
        hint = "leave parameters and buffers as they are, and compute what depends on the mode in the forward of a module of its own"
        raise CannotCut(
            f"its train({mode}) writes to {listed(written)}, and a change of mode must leave parameters and buffers as they are",
            hint,
        )
    return frozenset(name for name, module in network.named_modules() if module.training != mode)


def copy_part(owner: nn.Module, network: CutNetwork, part: Part) -> Forward:
    """Give a module the submodules, parameters and buffers of one part, under their names in the network's `state_dict`.

    Values are drawn with torch's present random numbers, on the default device; the meta device holds no values.

    Returns:
        the part's forward, a function (owner, *streams) -> streams.
    """
    training, evaluation = (network.graph_of(part, train=train) for train in (True, False))
    _copy_out(owner, network, part, training)
    for node in part.operations:
        if (
            node.op == "call_module"
            and only_reads(part, node)
            and hasattr(unit := owner.get_submodule(str(node.target)), "inplace")
        ):
            vars(unit)["inplace"] = False
    in_training, in_evaluation = type(training).forward, type(evaluation).forward
    return lambda module, *streams: (in_training if module.training else in_evaluation)(module, *streams)


def _copy_out(owner: nn.Module, network: CutNetwork, part: Part, made: fx.GraphModule) -> None:
    held, unread = network.held, network.unread[part.name]
    memo: dict[int, Any] = {}
    redrawn = dict(_names_of(held.build())) if held.drawn_at_once and _has_values() else {}
    for name, tensor in [*made.named_parameters(), *made.named_buffers()]:
        memo[id(tensor)] = _like(tensor, _values(tensor, held, redrawn.get(name)))
    for module in made.modules():  # what hooks have computed of parameters, and compute again: old weight_norm, pruning
        made_of_others = (one for one in vars(module).values() if isinstance(one, Tensor) and not one.is_leaf)
        memo |= {id(one): one.detach().to(torch.get_default_device()) for one in made_of_others}
    for name, child in made.named_children():
        owner.add_module(name, copy.deepcopy(child, memo))
    for name, parameter in made.named_parameters(recurse=False):
        owner.register_parameter(name, memo[id(parameter)])
    for name, buffer in made.named_buffers(recurse=False):
        owner.register_buffer(name, memo[id(buffer)])
    with torch.random.fork_rng(devices=[]):  # what is drawn after this follows from what the part reads alone
        for name, tensor in unread.items():
            if id(tensor) not in memo:
                memo[id(tensor)] = _like(tensor, _values(tensor, held, redrawn.get(name))).requires_grad_(False)
            _add(owner, held.module, name, memo[id(tensor)], memo)
    for name, _ in owner.named_buffers(remove_duplicate=False):
        path, _, last = name.rpartition(".")
        if last in held.module.get_submodule(path)._non_persistent_buffers_set:  # noqa: SLF001  torch tells it nowhere else
            owner.get_submodule(path)._non_persistent_buffers_set.add(last)  # noqa: SLF001


def _add(owner: nn.Module, network: nn.Module, name: str, tensor: Tensor, memo: Mapping[int, Any]) -> None:
    """Give a module a tensor under its name in the network; a copied layer that the network has there, too, is one with its copy."""
    path, _, last = name.rpartition(".")
    for one in path.split(".") if path else ():
        network = network.get_submodule(one)
        if one not in owner._modules:  # noqa: SLF001  an attribute of that name is something else
            owner.add_module(one, memo.get(id(network), nn.Module()))
        owner = owner.get_submodule(one)
    if isinstance(tensor, nn.Parameter):
        owner.register_parameter(last, tensor)
    else:
        owner.register_buffer(last, tensor)


def _has_values() -> bool:
    return torch.get_default_device().type != "meta"


def _values(tensor: Tensor, held: HeldNetwork, redrawn: Tensor | None) -> Tensor:
    device = torch.get_default_device()
    values = tensor.detach() if redrawn is None else redrawn.detach()
    if id(tensor) in held.steps and redrawn is None and _has_values():
        values = torch.empty_like(values, device="cpu")
        carry_out(held.steps[id(tensor)], values)
    return values.to(device, copy=True)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


def _names_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all names of all parameters and buffers; a shared one has several."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
