"""The modules of a network that are nodes: those of its longest lists, or those that are listed.

A network has lists of blocks, such as the layers of a transformer. Of lists within lists, the longest is taken, and of those that are
as long the outermost. Modules outside of these lists are nodes too where they have a matrix or kernel: an embedding, a first convolution, the
last layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from attrs import frozen
from torch import nn

from petra_graph_modules.cutting.cannot_cut import CannotCut

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_MATRIX = 2
"""The fewest dimensions of a weight that mixes features."""


@frozen(eq=False)
class Units:
    """The modules that are one operation each."""

    names: Mapping[nn.Module, str]
    nodes: frozenset[str]
    """Those that have a node each; the others join one."""


def units_of(network: nn.Module, listed: Sequence[str] = ()) -> Units:
    """Return the units of a network.

    Args:
        network: any module.
        listed: names of the modules that have a node each, or patterns such as "layers.*"; none: as this module says.

    Raises:
        CannotCut: a pattern names no module, or a listed module is inside another.
    """
    names = {module: name for name, module in network.named_modules() if name}
    if not listed:
        found = {module: names[module] for module in _by_lists(network)}
        heavy = [module for module in found if weighs(module)]
        after = {later for before, later in pairwise(heavy) if isinstance(before, nn.Embedding)}
        joined = {
            module for module in after if isinstance(module, nn.Embedding)
        }  # those of tokens and positions are one node
        return Units(found, frozenset(found[module] for module in heavy if module not in joined))
    chosen = [name for name in names.values() if any(_matches(name, pattern) for pattern in listed)]
    for pattern in listed:
        if not any(_matches(name, pattern) for name in chosen):
            raise CannotCut(
                f"no module is called {pattern!r}", f"modules: {', '.join(list(names.values())[:12])}", of_list=True
            )
    for name in chosen:
        if inside := next((other for other in chosen if other.startswith(f"{name}.")), ""):
            raise CannotCut(f"{inside!r} is inside {name!r}, and both are listed", "list one of them", of_list=True)
    spine = {name.rpartition(".")[0] for name in chosen}
    while parents := {name.rpartition(".")[0] for name in spine} - spine:
        spine |= parents
    found = {module: name for module, name in names.items() if _is_unit(network, module, name, spine)}
    return Units(found, frozenset(chosen))


def weighs(module: nn.Module) -> bool:
    """Whether a module has a matrix or kernel."""
    return any(parameter.dim() >= _MATRIX for parameter in module.parameters())


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern names a module: * is any text within one part of the name."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _is_unit(network: nn.Module, module: nn.Module, name: str, spine: set[str]) -> bool:
    above = name.rpartition(".")[0]
    if name in spine or isinstance(module, nn.ModuleList | nn.ModuleDict):
        return False
    while above not in spine and isinstance(network.get_submodule(above), nn.ModuleList | nn.ModuleDict):
        above = above.rpartition(".")[0]
    return above in spine


def _by_lists(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the units of a network: what is neither a container nor holds a longer list."""
    found = [unit for child in network.children() for unit in _units(child, _blocks(network))]
    heavy = [unit for unit in found if weighs(unit)]
    if len(heavy) == 1 and list(heavy[0].children()):  # a module around the network
        for unit in found:
            yield from _by_lists(unit) if unit is heavy[0] else [unit]
    else:
        yield from found


def _units(module: nn.Module, around: int, *, like_longer: bool = False) -> Iterator[nn.Module]:
    """Yield the units within a module.

    Args:
        module: of the network.
        around: the length of the longest list of blocks that it is in.
        like_longer: whether another block of its list has a longer list, so that this one is no unit either.
    """
    if not like_longer and not isinstance(module, CONTAINERS) and _longest(module) <= around:
        yield module
        return
    around = max(around, _blocks(module))
    opened = {type(child) for child in module.children() if _longest(child) > around} - set(CONTAINERS)
    for child in module.children():
        yield from _units(child, around, like_longer=type(child) in opened)


def _longest(module: nn.Module) -> int:
    return max(map(_blocks, module.modules()))


def _blocks(module: nn.Module) -> int:
    """Return how many blocks a module lists, as items or attributes: modules of one class that have layers with weights; 1 is no list."""
    of_class = Counter(type(child) for child in module.children() if list(child.children()) and weighs(child))
    return max((count for cls, count in of_class.items() if not issubclass(cls, CONTAINERS)), default=1)
