"""The parts of a network, as its author declares them, and how a node takes one out of it.

    class Net(nn.Module):
        def nodes(self):
            return {"down": self.down, "up": (self.up, "mid", "down"), "head": self.head}

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
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from petra_graph.blocks import Block
from petra_graph.errors import Problem, SpecError, kind_of
from petra_graph.plugins import named_code, seeded

_SMALL_BYTES = 2**24
"""A network of at most this size stays in memory: it is built again and again while nodes are measured."""


class BuiltNetwork:
    """A network and its parts.

    Attributes:
        module: the network.
        parts: its parts, in their order.
        reads: what each part reads, as declared; (): the part before it.
        residual: the parts x -> x + F(x) of one shape.
        names: by the identity of a tensor, all of its names in the network.
        owners: by the identity of a tensor, the parts that have it.

    Raises:
        SpecError: the parts are wrong, or the module can be in no pipeline.
    """

    def __init__(self, module: Any, split: Sequence[str]) -> None:
        _expect_fit(module)
        self.module: nn.Module = module
        self.parts: dict[str, nn.Module] = {}
        self.reads: dict[str, tuple[str, ...]] = {}
        for name, one in _declared(module, split).items():
            part, *read = one if isinstance(one, tuple) else (one,)
            if not isinstance(part, nn.Module) or not all(isinstance(source, str) for source in read):
                found = f"its part {name!r} is {kind_of(part)}, and no torch.nn.Module with names of what it reads"
                raise _wrong(found, _FORM)
            self.parts[name], self.reads[name] = part, tuple(read)
        self.residual = tuple(module.residual()) if callable(getattr(module, "residual", None)) else ()
        self.names: dict[int, list[str]] = {}
        for name, tensor in named_tensors(module):
            self.names.setdefault(id(tensor), []).append(name)
        self.owners: dict[int, list[str]] = {one: [] for one in self.names}
        for name, part in self.parts.items():
            for own in {id(tensor) for _, tensor in named_tensors(part)}:
                self.owners.setdefault(own, []).append(name)

    def shared_by(self, block: Block) -> Mapping[str, str]:
        """Return the parameters of a block that several parts have, each with its first name in the network."""
        own = {name for name, _ in block.named_parameters(remove_duplicate=False)}
        return {
            name: self.names[id(one)][0]
            for name, one in self.module.named_parameters(remove_duplicate=False)
            if name in own and len(self.owners[id(one)]) > 1
        }


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all names of all parameters and buffers; a shared one has several."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def layout_of(build: str, kwargs: Mapping[str, Any], split: Sequence[str]) -> BuiltNetwork:
    """Return a network without values where that can be: names, and what is read; errors as of `network_of`."""
    try:
        with torch.device("meta"):
            return network_of(build, kwargs, split)
    except SpecError:
        raise
    except Exception:  # noqa: BLE001  a constructor that needs values; what else is wrong, it says again
        return network_of(build, kwargs, split)


_known: WeakValueDictionary[Any, BuiltNetwork] = WeakValueDictionary()
_latest: dict[str, BuiltNetwork] = {}
"""By device: the last network that needs little memory, which the first dictionary would forget at once."""


def network_of(build: str, kwargs: Mapping[str, Any], split: Sequence[str]) -> BuiltNetwork:
    """Return the network that "module:attribute" makes with these arguments, on the default device, drawn with torch's present seed.

    Raises:
        SpecError: nothing makes it, or its parts are wrong; paths count from the options.
    """
    make, values = _maker(build, kwargs)
    device = torch.get_default_device().type
    seed = 0 if device == "meta" else torch.initial_seed()
    key = make, values, tuple(split), device, seed
    if (known := _known.get(key)) is None:
        with seeded(seed):
            module = make(**json.loads(values))
        known = _known[key] = BuiltNetwork(module, split)
        if device == "meta" or sum(one.numel() * one.element_size() for _, one in named_tensors(module)) < _SMALL_BYTES:
            _latest[device] = known
    return known


def whole_network(build: str, kwargs: Mapping[str, Any], names: Sequence[str]) -> Callable[[], nn.Module]:
    """Return the function that makes the network, whose forward is given a sample's inputs in their order; one for all nodes."""
    return _whole(*_maker(build, kwargs), tuple(names))


@lru_cache(maxsize=16)
def _whole(make: Callable[..., nn.Module], kwargs: str, names: tuple[str, ...]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        network = make(**json.loads(kwargs))
        if reads_names(network, names):
            network.register_forward_pre_hook(
                lambda _, read, __: ((), dict(zip(names, read, strict=True))), with_kwargs=True
            )
        return network

    return build


def reads_names(network: nn.Module, names: Sequence[str]) -> bool:
    """Whether a network's forward has parameters of the names of a sample's inputs; else it is given them in their order."""
    return bool(names) and set(names) <= inspect.signature(network.forward).parameters.keys()


def _maker(build: str, kwargs: Mapping[str, Any]) -> tuple[Callable[..., nn.Module], str]:
    make = named_code("build", build)
    if isinstance(make, nn.Module) or not callable(make):
        raise _wrong(f"{build} is {kind_of(make)}", "name a class, or a function that makes a new network at each call")
    return make, json.dumps(dict(kwargs), sort_keys=True)


def _wrong(message: str, hint: str = "") -> SpecError:
    return SpecError(Problem(message=message, hint=hint, path=("build",)))


def _expect_fit(module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise _wrong(f"it returned {kind_of(module)}, and no torch.nn.Module", "return the network")
    if lazy := [name for name, one in module.named_parameters() if is_lazy(one)]:
        hint = "give their sizes: Linear(in_features, out_features) for LazyLinear(out_features), and so on"
        raise _wrong(f"parameters have no shape before the first forward: {', '.join(lazy[:4])}", hint)
    if scripted := [name for name, one in module.named_modules() if isinstance(one, torch.jit.ScriptModule)]:
        hint = "leave out torch.jit.script, which compiles no training; run.compile = true compiles nodes"
        raise _wrong(f"modules are of torch.jit: {', '.join(scripted[:4])}", hint)


_FORM = 'let nodes() return a dictionary: {"stem": self.stem, "head": (self.head, "stem")}'


def _nodes(module: nn.Module) -> Any:
    """Return what the method nodes() of a network returns; None where it has none."""
    declared = getattr(module, "nodes", None)
    return declared() if callable(declared) and not isinstance(declared, nn.Module) else None


def parts_of(module: nn.Module) -> Mapping[str, Any]:
    """Return the parts of a network by name, as far as they are not the network itself; of an nn.Sequential, all of its modules."""
    if (declared := _nodes(module)) is None:
        return dict(module.named_modules()) if type(module).forward is nn.Sequential.forward else {}
    return {name: one[0] if isinstance(one, tuple) else one for name, one in declared.items()}


def _declared(module: nn.Module, split: Sequence[str]) -> Mapping[str, Any]:
    """Return the parts, each alone or with the names of what it reads."""
    given = _nodes(module)
    if given is None and type(module).forward is nn.Sequential.forward:
        given = dict(_children(module, "", split))
    elif given is None:
        given = {type(module).__name__.lower(): module}
    if not isinstance(given, Mapping) or not given:
        raise _wrong(f"its nodes() returned {kind_of(given)}", _FORM)
    if unknown := [one for one in split if not any(name.startswith(f"{one}.") for name in given)]:
        raise _wrong(f'split names "{unknown[0]}", which is no nn.Sequential within an nn.Sequential')
    return given


def _children(module: nn.Module, above: str, split: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module._modules.items():  # noqa: SLF001  named_children passes over a module's second place
        path = f"{above}{name}"
        if child is None:
            continue
        if path in split and type(child).forward is nn.Sequential.forward:
            yield from _children(child, f"{path}.", split)
        else:
            yield path, child


@frozen(eq=False)
class Link:
    """A tensor that a part's own module holds, and that the network has elsewhere: a position table that a module of `nodes()` reads."""

    module: nn.Module
    register: str
    key: str
    owner: nn.Module
    name: str

    def follow(self) -> None:
        """Give the module the tensor that the block has now."""
        vars(self.module)[self.register][self.key] = vars(self.owner)[self.register][self.name]


def take_part(block: Block, network: BuiltNetwork, name: str) -> tuple[nn.Module, Sequence[Link]]:
    """Give a block the tensors of a part under the names of the network's `state_dict`.

    Besides the part's modules, these are the second names of its tensors, what the modules hold that `nodes()` makes, and, in the last part,
    what no part has.

    Returns:
        the part, a copy with values of its own, and what it holds of modules that it does not contain.

    Raises:
        ValueError: the part has tensors that the network has under no name.
    """
    original, whole = network.parts[name], network.module
    copies: dict[int, Any] = {}
    for module in original.modules():  # what hooks compute of parameters, and will again: old weight_norm
        copies |= {
            id(one): one.detach() for one in vars(module).values() if isinstance(one, Tensor) and not one.is_leaf
        }
    taken: nn.Module = copy.deepcopy(original, copies)
    if original is whole:  # one node: the block has the network's own registers
        for register in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            vars(block)[register] = vars(taken)[register]
        return taken, ()
    mine = {id(module) for module in original.modules()}
    placed: tuple[str, ...] = ()
    for path, module in whole.named_modules(remove_duplicate=False):
        if path and id(module) in mine and not path.startswith(placed):
            owner, key = _place(block, path)
            vars(owner)["_modules"][key] = copies[id(module)]
            placed += (f"{path}.",)
    _place_tensors(block, network, name, placed, copies)
    return taken, list(_links(block, network, original, copies))


def _place_tensors(
    block: Block, network: BuiltNetwork, part: str, placed: tuple[str, ...], copies: dict[int, Any]
) -> None:
    """Register copies of a part's tensors under the names that no placed module has."""
    for path, one in named_tensors(network.module):
        owners = network.owners[id(one)] or list(network.parts)[-1:]
        if path.startswith(placed) or part not in owners:
            continue
        if id(one) not in copies:  # no part has it, so nothing trains it
            copies[id(one)] = copy.deepcopy(one).requires_grad_(False)
        owner, key = _place(block, path)
        vars(owner)["_parameters" if isinstance(one, nn.Parameter) else "_buffers"][key] = copies[id(one)]
        above = network.module.get_submodule(path.rpartition(".")[0])
        owner._non_persistent_buffers_set |= {key} & above._non_persistent_buffers_set  # noqa: SLF001  torch tells it nowhere else


def _links(block: Block, network: BuiltNetwork, part: nn.Module, copies: Mapping[int, Any]) -> Iterator[Link]:
    """Yield what the modules hold that `nodes()` alone has made."""
    known = set(network.module.modules())
    for module in part.modules():
        for register in () if module in known else ("_parameters", "_buffers"):
            for key, one in vars(module)[register].items():
                if one is not None and id(one) not in network.names:
                    raise ValueError(f"its tensor {key!r} is none of the network's: register it there")
                if one is not None:
                    yield Link(copies[id(module)], register, key, *_place(block, network.names[id(one)][0]))


def _place(block: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the module that holds the last name of a path, and that name; modules that are missing on the way are made, empty."""
    *above, last = path.split(".")
    for name in above:
        if block._modules.get(name) is None:  # noqa: SLF001  an attribute of that name is something else
            block._modules[name] = nn.Module()  # noqa: SLF001
        block = block._modules[name]  # type: ignore[assignment]  # noqa: SLF001
    return block, last
