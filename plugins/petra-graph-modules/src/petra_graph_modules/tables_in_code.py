"""Any `torch.nn.Module` in a specification that is made in code: as a node, or as the whole network. This imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import FunctionType
from typing import Any

from petra_graph.errors import SpecError, kind_of
from petra_graph.plugins import code_name


def buffered(module: Any, **kwargs: Any) -> dict[str, Any]:
    """Return a node of any torch.nn.Module, whose input is stored until its backward: pg.buffered(nn.Linear, in_features=2, out_features=8).

    The module reads the tensors [n, ...] of the node before, and returns one or several. For two streams, as reversible blocks
    read them, it returns two. Its parameters follow from the run's seed and the node's name.

    Args:
        module: its class, or a function that makes it; a module that is there already is refused.
        kwargs: what the class or function is called with: numbers, texts, lists and tables, as a file may have them.

    Raises:
        SpecError: it is no class or function, or cannot be found again by its module and its name.
    """
    return _node("module", module, kwargs)


def head(module: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the last node, of any torch.nn.Module, whose output the loss reads; arguments and errors as of `buffered`."""
    return _node("module-head", module, kwargs)


def module_table(module: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table `architecture` of any torch.nn.Module.

    Args:
        module: its class, or a function that makes it, or a `functools.partial` of one.
        given: other keys of the table.

    Raises:
        SpecError: as of `buffered`.
    """
    make, kwargs = (module.func, module.keywords) if isinstance(module, partial) else (module, {})
    if isinstance(module, partial) and module.args:
        raise SpecError("arguments of a partial need names", "as in functools.partial(MyNet, layers=4)")
    made = _made_by(make, kwargs, "module=MyNet, or module=functools.partial(MyNet, layers=4)")
    options = {"build": made["module"], **({"kwargs": kwargs} if kwargs else {}), **given.get("options", {})}
    return {"name": "module", **given, "options": options}


def _node(block: str, module: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"block": block, "options": _made_by(module, kwargs, _AS_IN)}


_AS_IN = "pg.buffered(nn.Linear, in_features=2, out_features=8)"


def _made_by(module: Any, kwargs: Mapping[str, Any], as_in: str) -> dict[str, Any]:
    if not isinstance(module, type | FunctionType):
        raise SpecError(
            f"a node makes its module itself, with parameters of its own (got {kind_of(module)})",
            f"give the class and its arguments, as in {as_in}, or a function",
        )
    wrong = next((key for key, value in kwargs.items() if callable(value)), None)
    if wrong is not None:
        raise SpecError(f"{wrong} cannot be {kind_of(kwargs[wrong])}", "give a function that makes the whole module")
    return {"module": code_name(module), "kwargs": kwargs}
