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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import Any
from weakref import WeakValueDictionary

import torch
from attrs import define, frozen
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from petra_graph.blocks import Block
from petra_graph.errors import Problem, SpecError, kind_of
from petra_graph.plugins import named_code, seeded

_SMALL_BYTES = 2**24
"""A network of at most this size stays in memory: it is built again and again while nodes are measured."""


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


@define(eq=False, slots=False)
class BuiltNetwork:
    """A network and its parts."""

    module: nn.Module
    parts: Mapping[str, nn.Module]
    reads: Mapping[str, tuple[str, ...]]
    """What each part reads, as declared; (): the part before it."""
    residual: tuple[str, ...]
    """The parts x -> x + F(x) of one shape."""

    @property
    def nbytes(self) -> int:
        return sum(one.numel() * one.element_size() for _, one in named_tensors(self.module))

    @cached_property
    def owned(self) -> Mapping[str, frozenset[int]]:
        """The identities of each part's tensors."""
        return {name: frozenset(id(one) for _, one in named_tensors(part)) for name, part in self.parts.items()}

    @cached_property
    def labels(self) -> Mapping[int, str]:
        """The first name of each parameter that several parts have."""
        owners = Counter(one for ids in self.owned.values() for one in ids)
        first: dict[int, str] = {}
        for name, one in self.module.named_parameters(remove_duplicate=False):
            first.setdefault(id(one), name)
        return {one: name for one, name in first.items() if owners[one] > 1}

    def unread(self, part: str, has: Callable[[str], bool]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors of the network that a part has under no name yet: second names of its own, and, in the last part, what no part has."""
        known = frozenset().union(*self.owned.values())
        for name, one in named_tensors(self.module):
            mine = id(one) in self.owned[part] or (id(one) not in known and part == list(self.parts)[-1])
            if mine and not has(name):
                yield name, one


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all names of all parameters and buffers; a shared one has several."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def layout_of(build: str, kwargs: Mapping[str, Any], split: Sequence[str]) -> BuiltNetwork:
    """Return a network without values where that can be: names, and what is read.

    Raises:
        SpecError: as of `network_of`.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return network_of(build, kwargs, split)
        except Exception as error:
            if isinstance(error, SpecError):
                raise
        return network_of(build, kwargs, split)


def network_of(build: str, kwargs: Mapping[str, Any], split: Sequence[str]) -> BuiltNetwork:
    """Return the network that "module:attribute" makes with these arguments, on the default device, drawn with torch's present seed.

    Raises:
        SpecError: nothing makes it, or its parts are wrong; paths count from the options.
    """
    make, values = _maker(build, kwargs)
    device = torch.get_default_device().type
    return _built(make, values, tuple(split), device, 0 if device == "meta" else torch.initial_seed())


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
        hint = "name a class, or a function that makes a new network at each call"
        raise SpecError(Problem(message=f"{build} is {kind_of(make)}", hint=hint, path=("build",)))
    return make, json.dumps(dict(kwargs), sort_keys=True)


_known: WeakValueDictionary[Any, BuiltNetwork] = WeakValueDictionary()
_latest: dict[str, BuiltNetwork] = {}
"""By device: the last network that needs little memory, which the first dictionary would forget at once."""


def _built(make: Callable[..., nn.Module], kwargs: str, split: tuple[str, ...], device: str, seed: int) -> BuiltNetwork:
    key = make, kwargs, split, device, seed
    if (known := _known.get(key)) is None:
        with seeded(seed):
            module = make(**json.loads(kwargs))
        known = _known[key] = _with_parts(module, split)
        if device == "meta" or known.nbytes <= _SMALL_BYTES:
            _latest[device] = known
    return known


def _with_parts(module: Any, split: Sequence[str]) -> BuiltNetwork:
    _expect_fit(module)
    declared = getattr(module, "nodes", None)
    if callable(declared) and not isinstance(declared, nn.Module):
        given = declared()
    elif type(module).forward is nn.Sequential.forward:
        given = dict(_children(module, "", split))
    else:
        given = {type(module).__name__.lower(): module}
    form = 'let nodes() return a dictionary: {"stem": self.stem, "head": (self.head, "stem")}'
    if not isinstance(given, Mapping) or not given:
        raise _wrong(f"its nodes() returned {kind_of(given)}", form)
    if unknown := [one for one in split if not any(name.startswith(f"{one}.") for name in given)]:
        raise _wrong(f'split names "{unknown[0]}", which is no nn.Sequential within an nn.Sequential')
    parts: dict[str, nn.Module] = {}
    reads: dict[str, tuple[str, ...]] = {}
    for name, one in given.items():
        part, *read = one if isinstance(one, tuple) else (one,)
        if not isinstance(part, nn.Module) or not all(isinstance(source, str) for source in read):
            raise _wrong(
                f"its part {name!r} is {kind_of(part)}, and no torch.nn.Module with names of what it reads", form
            )
        parts[name], reads[name] = part, tuple(read)
    residual = tuple(module.residual()) if callable(getattr(module, "residual", None)) else ()
    return BuiltNetwork(module, parts, reads, residual)


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


def _children(module: nn.Module, above: str, split: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module._modules.items():  # noqa: SLF001  named_children passes over a module's second place
        path = f"{above}{name}"
        if child is None:
            continue
        if path in split and type(child).forward is nn.Sequential.forward:
            yield from _children(child, f"{path}.", split)
        else:
            yield path, child


def take_part(block: Block, network: BuiltNetwork, name: str) -> tuple[nn.Module, Sequence[Link]]:
    """Give a block the tensors of a part under the names of the network's `state_dict`.

    Returns:
        the part, a copy with values of its own, and what it holds of modules that it does not contain.

    Raises:
        ValueError: the part has tensors that the network has under no name.
    """
    memo: dict[int, Any] = {}
    for module in network.parts[name].modules():  # what hooks compute of parameters, and will again: old weight_norm
        memo |= {id(one): one.detach() for one in vars(module).values() if isinstance(one, Tensor) and not one.is_leaf}
    taken: nn.Module = copy.deepcopy(network.parts[name], memo)
    if network.parts[name] is network.module:  # one node: the block has the network's own registers
        for register in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            vars(block)[register] = vars(taken)[register]
        return taken, ()
    return taken, _Taking(block, network, name, memo).links()


class _Taking:
    """A block that is given a part: its modules, what the modules of `nodes()` alone hold, and what no part reads."""

    def __init__(self, block: Block, network: BuiltNetwork, name: str, memo: dict[int, Any]) -> None:
        self.block, self.network, self.name, self.memo = block, network, name, memo
        mine = {id(module) for module in network.parts[name].modules()}
        self.placed: list[str] = []
        for path, module in network.module.named_modules(remove_duplicate=False):
            if path and id(module) in mine and not self.has(path):
                _place(block, path, memo[id(module)])
                self.placed.append(path)

    def has(self, path: str) -> bool:
        return path.startswith(tuple(f"{one}." for one in self.placed))

    def put(self, path: str, original: Tensor) -> None:
        if id(original) not in self.memo:  # no part has it, so nothing trains it
            self.memo[id(original)] = copy.deepcopy(original).requires_grad_(False)
        above, _, last = path.rpartition(".")
        transient = last in self.network.module.get_submodule(above)._non_persistent_buffers_set  # noqa: SLF001  torch tells it nowhere else
        _place(self.block, path, self.memo[id(original)], transient=transient)

    def links(self) -> tuple[Link, ...]:
        names: dict[int, str] = {}
        for path, one in named_tensors(self.network.module):
            names.setdefault(id(one), path)
        known = {id(module) for module in self.network.module.modules()}
        alone = [module for module in self.network.parts[self.name].modules() if id(module) not in known]
        found = []
        for module, register in product(alone, ("_parameters", "_buffers")):
            for key, one in vars(module)[register].items():
                if one is not None and id(one) not in names:
                    raise ValueError(f"its tensor {key!r} is none of the network's: register it there")
                if one is not None:
                    self.put(names[id(one)], one)
                    above, _, last = names[id(one)].rpartition(".")
                    found.append(Link(self.memo[id(module)], register, key, _owner(self.block, above), last))
        for path, one in list(self.network.unread(self.name, self.has)):
            self.put(path, one)
        return tuple(found)


def _place(block: Block, path: str, value: Any, *, transient: bool = False) -> None:
    above, _, last = path.rpartition(".")
    owner = _owner(block, above)
    register = "_modules" if isinstance(value, nn.Module) else "_buffers"
    register = "_parameters" if isinstance(value, nn.Parameter) else register
    vars(owner)[register][last] = value
    if transient:
        owner._non_persistent_buffers_set.add(last)  # noqa: SLF001


def _owner(block: nn.Module, path: str) -> nn.Module:
    """Return the module of a path, with empty ones where there are none."""
    for name in path.split(".") if path else ():
        if block._modules.get(name) is None:  # noqa: SLF001  an attribute of that name is something else
            block._modules[name] = nn.Module()  # noqa: SLF001
        block = block._modules[name]  # type: ignore[assignment]  # noqa: SLF001
    return block
