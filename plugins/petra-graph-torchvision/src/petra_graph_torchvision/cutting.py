"""torchvision's networks as operations to be cut: which modules are single operations, and which only put others together.

Decision: networks are traced by torch.fx, without samples, so that a network is cut at the same places for images of any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from petra_graph_modules.cutting import CONTAINERS, CannotCut
from torch import fx, nn


def traced(network: nn.Module) -> fx.Graph:
    """Return the operations of a network's forward, units as single operations.

    Raises:
        CannotCut: its forward depends on values.
    """
    try:
        return _Tracer().trace(network)
    except (fx.proxy.TraceError, TypeError) as error:
        raise CannotCut(f"its forward depends on values, which cannot be traced: {error}") from None


def may_cut(network: nn.Module, node: fx.Node, values: Sequence[fx.Node]) -> bool:
    """Whether a network may be cut after an operation: where it hands on one value, or units' outputs within a list of modules.

    Of several values all but the first belong to the list that `node` belongs to, too. A `Sequential` hands on one value; the owner of
    any other list decides, as a dense block does.
    """
    container = node.meta["container"]
    return len(values) == 1 or (
        isinstance(network.get_submodule(container), nn.ModuleList | nn.ModuleDict)
        and all(value.op == "call_module" for value in values)
        and all(value.meta["container"] == container for value in values[1:])
    )


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not _is_container(m)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        path = self.scope.module_path
        node.meta["container"] = path.rpartition(".")[0] if node.op == "call_module" else path
        return node


def _is_container(module: nn.Module) -> bool:
    """Whether a module only puts units together: a list of modules, or a module of torchvision that holds a list of blocks."""
    if isinstance(module, CONTAINERS):
        return True
    lists = [child for child in module.children() if isinstance(child, CONTAINERS)]
    return any(_is_block(item) for child in lists for item in child.children())


def _is_block(module: nn.Module) -> bool:
    """Whether a module is a block of a family of networks, and no layer of torch or torchvision.ops."""
    return type(module).__module__.startswith("torchvision.models.") and not isinstance(module, nn.Sequential)
