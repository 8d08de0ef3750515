"""The kinds of plugins, as one table: what the framework gives, and what a run makes of what is built."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import attrs

from petra_graph.plugins.callback import Callback
from petra_graph.plugins.contract import Plugin, PluginKind
from petra_graph.plugins.data_set import data_of
from petra_graph.plugins.loss_and_metric import Loss, Metric
from petra_graph.plugins.optimizer import optimizer_of
from petra_graph.spec.model import NodeSpec

Given = tuple[Any, ...]
Options = dict[str, Any]
_OUTPUT_AND_TARGET = 2


def _as_block(code: Any) -> Any:
    """Return a class of blocks as it is; of any other class of modules, and of a function that makes one, the class of blocks that call it."""
    torch = sys.modules.get("torch")
    of_modules = torch is not None and isinstance(code, type) and issubclass(code, torch.nn.Module)
    if not (of_modules or inspect.isfunction(code) or inspect.ismethod(code)):
        return code
    from petra_graph.blocks.block_kinds import Block
    from petra_graph.blocks.module_block import block_of

    return code if of_modules and issubclass(code, Block) else block_of(code)


def head_of(plugin: Plugin) -> Plugin:
    """Return the block of a node with `kind = "head"`: where it is any module, what that returns goes to the loss as it is."""
    from petra_graph.blocks.module_block import OfModule, block_of

    of_module = issubclass(plugin.code, OfModule)
    return attrs.evolve(plugin, code=block_of(plugin.code.make, head=True)) if of_module else plugin


def _nodes(plugin: Plugin, given: Given, options: Options) -> tuple[NodeSpec, ...]:
    made = tuple(plugin.code(*given, **options))
    if not made or not all(isinstance(node, NodeSpec) for node in made):
        raise plugin.broken("it returns something else than a tuple of NodeSpec")
    return made


def _factor(plugin: Plugin, given: Given, options: Options) -> Callable[[int], float]:
    (horizon,), code = given, plugin.code
    float(code(0, horizon, **options))  # what is wrong with its options is told before the training
    return lambda update: float(code(update, horizon, **options))


def _as_loss(code: Any) -> Any:
    """Return what builds the loss: a class as it is; of a function of output and target one with its options; of an instance, copies."""
    if isinstance(code, type) or not callable(code):
        return code
    is_function = inspect.isroutine(code)
    parameters = list(inspect.signature(code).parameters.values()) if is_function else []
    required = [one for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if is_function and len(required) != _OUTPUT_AND_TARGET:
        return code

    @wraps(code, updated=())  # annotations need its globals
    def build(**options: Any) -> Any:
        return partial(code, **options) if is_function else copy.deepcopy(code)

    build.__signature__ = inspect.Signature(parameters[_OUTPUT_AND_TARGET:])  # type: ignore[attr-defined]
    return build


# fmt: off
BLOCK = PluginKind("block", "blocks", "", ("inputs",), adapt=_as_block, fault=lambda code: (
    "" if isinstance(code, type) and hasattr(code, "kind")
    else "is no class of torch.nn.Module or petra_graph.blocks, and no function that makes a module"))
ARCHITECTURE = PluginKind("architecture", "architectures", "architecture", ("facts",), make=_nodes)
OPTIMIZER = PluginKind("optimizer", "optimizers", "optimizer", ("groups",), make=optimizer_of, fault=lambda code: (
    "" if "lr" in inspect.signature(code).parameters else "has no option `lr`, the base learning rate"))
LR_SCHEDULE = PluginKind("learning-rate schedule", "lr_schedules", "lr_schedule", ("update", "horizon"), make=_factor)
LOSS = PluginKind("loss", "losses", "loss", (), adapt=_as_loss, make=Loss)
METRIC = PluginKind("metric", "metrics", "metric", (), several=True, make=Metric)
DATA_SET = PluginKind("data set", "datasets", "data", (), make=data_of, fault=lambda code: (
    "" if hasattr(code, "facts") else "has no `facts`, a DataFacts of its samples, or a static method that returns it"))
CALLBACK = PluginKind("callback", "callbacks", "callback", (), several=True, fault=lambda code: (
    "" if isinstance(code, type) and issubclass(code, Callback) else "is not a subclass of petra_graph.plugins.Callback"))
# fmt: on
KINDS = (BLOCK, ARCHITECTURE, OPTIMIZER, LR_SCHEDULE, LOSS, METRIC, DATA_SET, CALLBACK)
"""In the order of lists and of the guide."""
