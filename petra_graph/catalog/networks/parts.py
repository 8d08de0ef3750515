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
from typing import Any, Self
from weakref import WeakValueDictionary

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from petra_graph.errors import Problem, SpecError, kind_of
from petra_graph.plugins import named_code, seeded

_SMALL_BYTES = 2**24
"""A network of at most this size stays in memory: it is built again and again while nodes are measured."""
_FORM = 'let nodes() return a dictionary: {"stem": self.stem, "head": (self.head, "stem")}'
Link = tuple[dict[str, Any], str, dict[str, Any], str]
"""A tensor that a part's own module holds, and that the network has elsewhere, as a position table that a module of `nodes()` reads: the
registers of both, each with its name."""


@frozen
class Maker:
    """What makes a network, by "module:attribute" and arguments; equal ones make equal networks.

    Attributes:
        names: of a sample's inputs, which the forward is given in their order, or by name where it has such parameters.
    """

    make: Callable[..., nn.Module]
    kwargs: str
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, build: str, kwargs: Mapping[str, Any], names: Sequence[str] = ()) -> Self:
        make = named_code("build", build)
        if isinstance(make, nn.Module) or not callable(make):
            raise wrong(
                f"{build} is {kind_of(make)}", "name a class, or a function that makes a new network at each call"
            )
        return cls(make, json.dumps(dict(kwargs), sort_keys=True), tuple(names))

    def __call__(self) -> nn.Module:
        network = self.make(**json.loads(self.kwargs))
        if reads_names(network, self.names):
            network.register_forward_pre_hook(
                lambda _, read, __: ((), dict(zip(self.names, read, strict=True))), with_kwargs=True
            )
        return network


def reads_names(network: nn.Module, names: Sequence[str]) -> bool:
    """Whether a network's forward has parameters of the names of a sample's inputs; else it is given them in their order."""
    return bool(names) and set(names) <= inspect.signature(network.forward).parameters.keys()


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

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.module = make, make()
        module = self.module
        _expect_fit(module)
        self.parts: dict[str, nn.Module] = {}
        self.reads: dict[str, tuple[str, ...]] = {}
        for name, one in _declared(module).items():
            part, *read = one if isinstance(one, tuple) else (one,)
            if not isinstance(part, nn.Module) or not all(isinstance(source, str) for source in read):
                found = f"its part {name!r} is {kind_of(part)}, and no torch.nn.Module with names of what it reads"
                raise wrong(found, _FORM)
            self.parts[name], self.reads[name] = part, tuple(read)
        self.residual = tuple(module.residual()) if callable(getattr(module, "residual", None)) else ()
        self.names: dict[int, list[str]] = {}
        self.owners: dict[int, list[str]] = {}
        for name, tensor in _named_tensors(module):
            self.names.setdefault(id(tensor), []).append(name)
        for name, part in self.parts.items():
            for own in {id(tensor) for _, tensor in _named_tensors(part)}:
                self.owners.setdefault(own, []).append(name)

    def shared_by(self, block: nn.Module) -> Mapping[str, str]:
        """Return the parameters of a block that several parts have, each with its first name in the network."""
        own = {name for name, _ in block.named_parameters(remove_duplicate=False)}
        return {
            name: self.names[id(one)][0]
            for name, one in self.module.named_parameters(remove_duplicate=False)
            if name in own and len(self.owners.get(id(one), ())) > 1
        }

    def give(self, block: nn.Module, name: str) -> tuple[nn.Module, Sequence[Link]]:
        """Give a block copies of the tensors of a part, under the names of the network's `state_dict`.

        Besides the part's modules, these are the second names of its tensors, what the modules hold that `nodes()` makes, and, in the last
        part, what no part has.

        Returns:
            the part, a copy with values of its own, and what it holds of modules that it does not contain.

        Raises:
            ValueError: the part has tensors that the network has under no name.
        """
        original = self.parts[name]
        if (
            original is self.module
        ):  # one node: the block has the registers of a network of its own, which hooks may know as `self`
            whole: nn.Module = self.make()
            for register in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
                vars(block)[register] = vars(whole)[register]
            return whole, ()
        copies: dict[int, Any] = {}
        for module in original.modules():  # what hooks compute of parameters, and will again: old weight_norm
            copies |= {
                id(one): one.detach() for one in vars(module).values() if isinstance(one, Tensor) and not one.is_leaf
            }
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
_latest: dict[str, BuiltNetwork] = {}
"""By device: the last network that needs little memory, which the first dictionary would forget at once."""


def network_of(maker: Maker) -> BuiltNetwork:
    """Return the network that is made on the default device, drawn with torch's present seed; SpecError: its parts are wrong."""
    device = torch.get_default_device().type
    seed = 0 if device == "meta" else torch.initial_seed()
    key = maker, device, seed
    if (known := _known.get(key)) is None:

        def made() -> Any:
            with seeded(seed):
                return maker.make(**json.loads(maker.kwargs))

        known = _known[key] = BuiltNetwork(made)
        if device == "meta" or sum(one.nbytes for _, one in _named_tensors(known.module)) < _SMALL_BYTES:
            _latest[device] = known
    return known


def layout_of(maker: Maker) -> BuiltNetwork:
    """Return a network without values where that can be: names, and what is read; errors as of `network_of`."""
    try:
        with torch.device("meta"):
            return network_of(maker)
    except SpecError:
        raise
    except Exception:  # noqa: BLE001  a constructor that needs values; what else is wrong, it says again
        return network_of(maker)


def wrong(message: str, hint: str = "") -> SpecError:
    return SpecError(Problem(message=message, hint=hint, path=("build",)))


def _expect_fit(module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise wrong(f"it returned {kind_of(module)}, and no torch.nn.Module", "return the network")
    if lazy := [name for name, one in module.named_parameters() if is_lazy(one)]:
        hint = "give their sizes: Linear(in_features, out_features) for LazyLinear(out_features), and so on"
        raise wrong(f"parameters have no shape before the first forward: {', '.join(lazy[:4])}", hint)
    if scripted := [name for name, one in module.named_modules() if isinstance(one, torch.jit.ScriptModule)]:
        hint = "leave out torch.jit.script, which compiles no training; run.compile = true compiles nodes"
        raise wrong(f"modules are of torch.jit: {', '.join(scripted[:4])}", hint)


def _declared(module: nn.Module) -> Mapping[str, Any]:
    """Return the parts of a network by name, each alone or with the names of what it reads; the module itself where it has none."""
    nodes = getattr(module, "nodes", None)
    given: Any = {type(module).__name__.lower(): module}
    if callable(nodes) and not isinstance(nodes, nn.Module):
        given = nodes()
    elif type(module).forward is nn.Sequential.forward:
        # A module that is there twice is a part twice; `named_children` would pass over its second place.
        given = {name: child for name, child in module._modules.items() if child is not None}  # noqa: SLF001
    if not isinstance(given, Mapping) or not given:
        raise wrong(f"its nodes() returned {kind_of(given)}", _FORM)
    return given
