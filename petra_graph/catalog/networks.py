"""Networks of anyone as nodes, a part each: buffered ones, the head, and steps of a reversible chain of residual parts.

    stem -> a -> b -> c -> head         streams  1  1  1  1         all buffered
    stem -> a -> b -> c -> head                  1  2  2  2         a, b, c coupled: each hands on two states, and others read the first

Parts are run as they are: nothing is traced. A block has its part's modules under their names in the network's `state_dict`. So what is
registered under a name in the network is shared by identity, and a node has the tensors under all of their names.

Decision: the network is built whole, with one seed for all nodes, and each node copies its part out of it: a constructor may draw, tie and
overwrite whatever it likes, and the initial values are those of the module itself under this seed.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self
from weakref import WeakValueDictionary

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from petra_graph.blocks import Block, Buffered, DualResidualEntry, DualResidualStep, Shape, Streams
from petra_graph.blocks.dual_residual import Alpha, Beta
from petra_graph.blocks.module_block import StructuredHead, as_outputs
from petra_graph.blocks.randomness import may_draw
from petra_graph.catalog.blocks import NO_ARGUMENTS, Arguments
from petra_graph.errors import kind_of
from petra_graph.plugins import AtLeast, Code, DataFacts, Kind, NodeSpec, named_code, seeded

Coupling = Annotated[Literal["dual-residual"] | None, "makes chains of residual parts reversible, as Dr2Net does"]
Anchors = Annotated[int | None, "every n-th part of a chain is buffered: reconstruction begins anew there", AtLeast(1)]
_FORM = 'let nodes() return a dictionary: {"stem": self.stem, "head": (self.head, "stem")}'
Link = tuple[dict[str, Any], str, dict[str, Any], str]
"""A tensor that a part's own module holds, and that the network has elsewhere, as a position table that a module of `nodes()` reads: the
registers of both, each with its name."""


def module_nodes(
    facts: DataFacts,
    *,
    build: Annotated[Code, 'class or function that makes the network, as in "my_file:make_model"'],
    kwargs: Arguments = NO_ARGUMENTS,
    coupling: Coupling = None,
    anchors: Anchors = None,
    alpha: Alpha = 1.0,
    beta: Beta = 0.1,
) -> tuple[NodeSpec, ...]:
    """Any torch.nn.Module, by its parts: the children of an nn.Sequential, or what its method nodes() returns."""
    try:
        with torch.device("meta"):
            layout = network_of(build, kwargs)
    except Exception:  # noqa: BLE001  a constructor that needs values; what else is wrong, it says again
        layout = network_of(build, kwargs)
    inputs = tuple(facts.inputs) if facts.several_inputs else ()
    named = tuple(one for one in inspect.signature(layout.module.forward).parameters if one in inputs)
    if len(named) == len(inputs) and named != inputs:
        raise ValueError(f"the forward of {build} reads {', '.join(named)}: give samples inputs in that order")
    reads: dict[str, tuple[str, ...]] = {}
    for name, own in layout.reads.items():
        there = [*inputs, *reads]
        reads[name] = own or tuple(list(reads)[-1:] or inputs)
        if unknown := [one for one in reads[name] if one not in there]:
            found = f"reads {unknown[0]!r}; in front of it are {', '.join(there) or 'none'}"
            raise ValueError(f"the part {name!r} of {build} {found}")
    first, last = next(iter(reads)), next(reversed(reads))
    # One node reads the samples: it hands on the inputs that later parts read.
    handed_on = [one for one in inputs if any(one in reads[name] for name in reads if name != first)]
    residual = [name for name in layout.residual if name != last and not (handed_on and first in reads[name])]
    chained = {} if coupling is None else _chained(reads, residual)
    streams: dict[str, tuple[str, ...]]
    streams = {name: (name, "the state before it") if name in chained else (name,) for name in reads}
    streams[first] += tuple(handed_on)
    shared = {"build": str(build)} | ({"kwargs": dict(kwargs)} if kwargs else {})
    made: list[NodeSpec] = []
    for name, own in reads.items():
        block: str = "module-part-head" if name == last else "module-part"
        kind: Kind | None = None
        options: dict[str, Any] = {"part": name}
        producers = list(dict.fromkeys(first if one in inputs else one for one in own)) if made else []
        there = [one for producer in producers for one in streams[producer]] if made else list(inputs)
        if name in chained:
            block, kind, coefficients = link_of_chain(chained[name], anchors, alpha, beta)
            options |= coefficients
        elif list(own) != there and there:
            options["reads"] = tuple(there.index(one) for one in own)
        if handed_on and not made:
            options["hands_on"] = tuple(inputs.index(one) for one in handed_on)
        reading = None if not made or producers == [made[-1].name] else tuple(producers)
        made.append(NodeSpec(name=name, block=block, kind=kind, inputs=reading, options=shared | options))
    return tuple(made)


def link_of_chain(place: int, anchors: int | None, alpha: float, beta: float) -> tuple[str, Kind, dict[str, float]]:
    """Return the block, the kind and the coefficients of a layer at a place of a reversible chain."""
    kind: Kind = "buffered" if anchors is not None and (place + 1) % anchors == 0 else "reversible"
    if place == 0:
        return "dual-residual-entry", kind, {"alpha": alpha}
    return "dual-residual-step", kind, {"alpha": alpha, "beta": beta}


def _chained(reads: Mapping[str, Sequence[str]], residual: Sequence[str]) -> dict[str, int]:
    """Return the residual parts that follow one another, each with its place in its chain; one that stands alone would spare no stream."""
    places: dict[str, int] = {}
    for name, own in reads.items():
        if name in residual and len(own) == 1 and own[0] in reads:
            places[name] = places.get(own[0], -1) + 1
    followed = {own[0] for name, own in reads.items() if places.get(name)}
    if not followed:
        raise ValueError("coupling: no two residual parts, which the method residual() names, follow one another")
    return {name: place for name, place in places.items() if place or name in followed}


@frozen
class Maker:
    """What makes a network, code with its arguments in JSON; equal ones make equal networks."""

    make: Callable[..., nn.Module]
    kwargs: str

    def __call__(self) -> nn.Module:
        return self.make(**json.loads(self.kwargs))


class BuiltNetwork:
    """A network `module` and its `parts` by name, each with what it `reads`, (): the part before it; `residual` are parts x -> x + F(x)."""

    def __init__(self, maker: Maker, seed: int) -> None:  # noqa: C901  what is refused, one after the other
        self.maker, self.seed = maker, seed
        module: Any = self.make()
        if not isinstance(module, nn.Module):
            raise TypeError(f"it returned {kind_of(module)}, and no torch.nn.Module")
        if lazy := [name for name, one in module.named_parameters() if is_lazy(one)]:
            raise ValueError(f"parameters have no shape before the first forward: {', '.join(lazy)}; give their sizes")
        if scripted := [name for name, one in module.named_modules() if isinstance(one, torch.jit.ScriptModule)]:
            raise ValueError(f"modules are of torch.jit: {', '.join(scripted)}; run.compile = true compiles nodes")
        self.module: nn.Module = module
        nodes: Any = getattr(module, "nodes", None)
        given: Any = {type(module).__name__.lower(): module}
        if callable(nodes) and not isinstance(nodes, nn.Module):
            given = nodes()
        elif type(module).forward is nn.Sequential.forward:
            # A module that is there twice is a part twice; `named_children` would pass over its second place.
            given = {name: child for name, child in module._modules.items() if child is not None}  # noqa: SLF001
        if not isinstance(given, Mapping) or not given:
            raise TypeError(f"its nodes() returned {kind_of(given)}: {_FORM}")
        self.parts: dict[str, nn.Module] = {}
        self.reads: dict[str, tuple[str, ...]] = {}
        for name, one in given.items():
            part, *read = one if isinstance(one, tuple) else (one,)
            if not isinstance(part, nn.Module) or not all(isinstance(source, str) for source in read):
                found = f"its part {name!r} is {kind_of(part)}, and no torch.nn.Module with names of what it reads"
                raise ValueError(f"{found}: {_FORM}")
            self.parts[name], self.reads[name] = part, tuple(read)
        residual: Any = getattr(module, "residual", None)
        self.residual = tuple(residual()) if callable(residual) and not isinstance(residual, nn.Module) else ()
        self.names: dict[int, list[str]] = {}
        """By the identity of a tensor, all of its names in the network."""
        self.owners: dict[int, list[str]] = {}
        """By the identity of a tensor, the parts that have it."""
        for name, tensor in _named_tensors(module):
            self.names.setdefault(id(tensor), []).append(name)
        for name, part in self.parts.items():
            for own in {id(tensor) for _, tensor in _named_tensors(part)}:
                self.owners.setdefault(own, []).append(name)

    def make(self) -> Any:
        with seeded(self.seed):
            return self.maker()

    def give(self, block: nn.Module, name: str) -> tuple[nn.Module, Sequence[Link]]:
        """Give a block copies of the tensors of a part, under the names of the network's `state_dict`.

        Besides the part's modules, these are the second names of its tensors, what the modules hold that `nodes()` makes, and, in the last
        part, what no part has. Returns the part, a copy with values of its own, and what it holds of modules that it does not contain.
        """
        original = self.parts[name]
        if original is self.module:  # the registers of a network of its own, which hooks may know as `self`
            whole: nn.Module = self.make()
            for register in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
                vars(block)[register] = vars(whole)[register]
            return whole, ()
        copies: dict[int, Any] = {}
        for module in original.modules():  # what hooks compute of parameters, and will again: old weight_norm
            computed = [one for one in vars(module).values() if isinstance(one, Tensor) and not one.is_leaf]
            copies |= {id(one): one.detach() for one in computed}
        taken: nn.Module = copy.deepcopy(original, copies)
        mine, placed = {id(module) for module in original.modules()}, tuple[str, ...]()
        for path, module in self.module.named_modules(remove_duplicate=False):
            if path and id(module) in mine and not path.startswith(placed):
                owner, key = holder_of(block, path)
                vars(owner)["_modules"][key] = copies[id(module)]
                placed += (f"{path}.",)
        for path, one in _named_tensors(self.module):
            owners = self.owners.get(id(one)) or list(self.parts)[-1:]
            if path.startswith(placed) or name not in owners:
                continue
            if id(one) not in copies:  # no part has it, so nothing trains it
                copies[id(one)] = copy.deepcopy(one).requires_grad_(False)
            owner, key = holder_of(block, path)
            vars(owner)["_parameters" if isinstance(one, nn.Parameter) else "_buffers"][key] = copies[id(one)]
            above = self.module.get_submodule(path.rpartition(".")[0])
            owner._non_persistent_buffers_set |= {key} & above._non_persistent_buffers_set  # noqa: SLF001  torch tells it nowhere else
        return taken, list(self._links(block, original, copies))

    def _links(self, block: nn.Module, part: nn.Module, copies: Mapping[int, Any]) -> Iterator[Link]:
        """Yield what the modules hold that `nodes()` alone has made."""
        known = set(self.module.modules())
        for module in part.modules():
            for register in () if module in known else ("_parameters", "_buffers"):
                for key, one in vars(module)[register].items():
                    if one is not None and id(one) not in self.names:
                        raise ValueError(f"its tensor {key!r} does not belong to the network: register it there")
                    if one is not None:
                        owner, name = holder_of(block, self.names[id(one)][0])
                        yield vars(copies[id(module)])[register], key, vars(owner)[register], name


def holder_of(block: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the module that holds the last name of a path, and that name; modules that are missing on the way are made, empty."""
    *above, last = path.split(".")
    for name in above:
        if block._modules.get(name) is None:  # noqa: SLF001  an attribute of that name is something else
            block._modules[name] = nn.Module()  # noqa: SLF001
        block = block._modules[name]  # type: ignore[assignment]  # noqa: SLF001
    return block, last


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all names of all parameters and buffers; a shared one has several."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


_known: WeakValueDictionary[Any, BuiltNetwork] = WeakValueDictionary()
_layout: list[BuiltNetwork] = []
"""The last network without values, which the dictionary would forget at once."""


def network_of(build: str, kwargs: Mapping[str, Any]) -> BuiltNetwork:
    """Return the network that is made on the default device, drawn with torch's present seed; ValueError: its parts are wrong."""
    make = named_code("build", build)
    if isinstance(make, nn.Module) or not callable(make):
        raise TypeError(f"{build} is {kind_of(make)}: name a class, or a function that makes a new network")
    maker, device = Maker(make, json.dumps(dict(kwargs), sort_keys=True)), torch.get_default_device().type
    seed = 0 if device == "meta" else torch.initial_seed()
    if (known := _known.get((maker, device, seed))) is None:
        known = _known[maker, device, seed] = BuiltNetwork(maker, seed)
        if device == "meta":
            _layout[:] = [known]
    return known


class _OfNetwork(Block):
    """A block that has a part of a network: the part itself is no submodule, but all that the network has of it."""

    draws = False  # each instance says it, of modules that the network does not have
    drawn_as = "network"  # all parts draw the random numbers of one constructor
    part: nn.Module
    links: Sequence[Link]
    of: str
    reads: Sequence[int]
    hands_on: Sequence[int]

    def __init__(
        self,
        inputs: Sequence[Shape],
        *,
        build: Annotated[Code, "class or function that makes the network"],
        kwargs: Arguments = NO_ARGUMENTS,
        part: Annotated[str, "name of the part"],
        reads: Annotated[tuple[int, ...], "places of the node's streams that the part reads; default: all"] = (),
        hands_on: Annotated[tuple[int, ...], "places of the node's streams that it returns behind its own"] = (),
        **options: Any,
    ) -> None:
        super().__init__(inputs, **options)
        network = network_of(build, kwargs)
        taken, links = network.give(self, part)
        own = {name for name, _ in self.named_parameters(remove_duplicate=False)}
        every = network.module.named_parameters(remove_duplicate=False)
        shared = {name: one for name, one in every if name in own and len(network.owners.get(id(one), ())) > 1}
        # Not by `setattr`: a module of the network may have any of these names.
        vars(self).update(part=taken, links=links, of=f"the part {part} of {build}", reads=reads, hands_on=hands_on)
        vars(self)["draws"], vars(self)["of_network"] = may_draw(taken), network.maker
        vars(self)["shared_parameters"] = {name: network.names[id(one)][0] for name, one in shared.items()}
        vars(self)["built"] = network  # until all nodes are built: then it is forgotten
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the part, as its own `train` does."""
        super().train(mode)
        self.part.train(mode)
        return self

    def get_submodule(self, target: str) -> nn.Module:
        """Return a module of the network; names of a block's own attributes are not among them."""
        found: nn.Module = self
        for name in filter(None, target.split(".")):
            found = found._modules[name]  # type: ignore[assignment]  # noqa: SLF001
        return found

    def value(self, *streams: Tensor) -> Any:
        """Return what the part makes of the streams that it reads."""
        for own, key, of_block, name in self.links:
            own[key] = of_block[name]  # the tensor that the block has now
        return self.part(*((streams[at] for at in self.reads) if self.reads else streams))

    def residual(self, x: Tensor) -> Tensor:
        """Return B(x), of a residual part."""
        (value,) = as_outputs(self.value(x), self.of)
        return value


class Part(_OfNetwork, Buffered):
    """A part of a network: streams to those that later parts read."""

    def forward(self, *streams: Tensor) -> Streams:
        return as_outputs(self.value(*streams), self.of) + tuple(streams[at] for at in self.hands_on)


class PartHead(_OfNetwork, StructuredHead):
    """The last part of a network: streams to what the network returns."""


class DualResidualEntryPart(_OfNetwork, DualResidualEntry):
    """The first residual part of a chain: one stream to two."""


class DualResidualStepPart(_OfNetwork, DualResidualStep):
    """A residual part made reversible, as in Dr2Net: Zhao et al. 2024, https://arxiv.org/abs/2401.04105, equation 1."""


for _block in (Part, PartHead, DualResidualEntryPart, DualResidualStepPart):
    _block.draws = False  # as of `_OfNetwork`: a class says it itself
