"""The parts of any network as blocks: what the architecture "module" writes out.

A block's parameters have the names that they have in the network's `state_dict`, so a file of its weights fits them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

import torch
from torch import Tensor, nn

from petra_graph.blocks import Block, Buffered, Head, Shape, Streams
from petra_graph.errors import Problem, SpecError, kind_of
from petra_graph.plugins import named_code
from petra_graph_modules.cutting import CannotCut, CutNetwork, Input, copy_part, cut_network, put_together
from petra_graph_modules.declared import ModulePartOptions


class _OfPart(Block):
    Options = ModulePartOptions

    def __init__(self, inputs: Sequence[Shape], options: ModulePartOptions) -> None:
        super().__init__(inputs, options)
        network = cut_module(options)
        if options.node not in network.parts:
            hint = f"it has {', '.join(network.parts)}"
            raise SpecError(Problem(message=f"{options.build} has no node {options.node}", hint=hint, path=("node",)))
        self._unlike = network.unlike
        self._forward = copy_part(self, network, network.parts[options.node])
        self.draws = network.draws(network.parts[options.node])
        self.shared_parameters = network.shared[options.node]
        self.of_network = network.make_whole
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set the mode, as the network's own `train` does."""
        super().train(mode)
        for name, module in self.named_modules():
            if name in self._unlike[mode]:
                module.training = not mode
        return self

    def forward(self, *streams: Tensor) -> Streams:
        """Return what later parts read."""
        return self._forward(self, *streams)


class ModulePart(_OfPart, Buffered):
    """Streams to those that later parts read."""

    draws = True  # each instance says it


class ModulePartHead(_OfPart, Head):
    """Streams to what the network returns."""

    draws = True

    def __init__(self, inputs: Sequence[Shape], options: ModulePartOptions) -> None:
        super().__init__(inputs, options)
        self._returns = cut_module(options).forward.returns

    def returned(self, streams: Streams) -> Any:
        """Return what the network returns in this mode, of which these are the tensors."""
        return put_together(self._returns[self.training], streams)


def cut_module(options: ModulePartOptions) -> CutNetwork:
    """Return the network that options name, cut.

    Raises:
        SpecError: nothing makes it, or it cannot be cut; paths count from the options.
    """
    make = named_code("build", options.build)
    if isinstance(make, nn.Module) or not callable(make):
        message, hint = (
            f"{options.build} is {kind_of(make)}",
            "name a class, or a function that makes a new network at each call",
        )
        raise SpecError(Problem(message=message, hint=hint, path=("build",)))
    try:
        inspect.signature(make).bind(**options.kwargs)
    except TypeError as error:
        message = f"{options.build} cannot be called with kwargs: {error}"
        raise SpecError(Problem(message=message, path=("kwargs",))) from None
    try:
        kwargs = json.dumps(dict(options.kwargs), sort_keys=True)
        return _cut(make, kwargs, _read_inputs(options), options.nodes)
    except CannotCut as error:
        path = ("nodes",) if error.of_list else ("build",)
        message = f"{options.build} cannot be cut into nodes: {error}"
        raise SpecError(Problem(message=message, hint=error.hint, path=path)) from None


@lru_cache(maxsize=8)
def _cut(
    make: Callable[..., nn.Module],
    kwargs: str,
    inputs: tuple[Input, ...],
    nodes: tuple[str, ...],
) -> CutNetwork:
    def build() -> nn.Module:
        made = make(**json.loads(kwargs))
        if not isinstance(made, nn.Module):
            raise CannotCut(f"it returned {kind_of(made)}, and no torch.nn.Module", "return the network")
        return made

    return cut_network(build, inputs, nodes)


def _read_inputs(options: ModulePartOptions) -> tuple[Input, ...]:
    """Return what the network reads of a sample, in the order of the data."""
    if not isinstance(options.shape, Mapping):
        return (Input(options.shape, torch.int64 if options.tokens else torch.float32),)
    tokens = options.tokens if isinstance(options.tokens, tuple) else ()
    return tuple(
        Input(tuple(shape), torch.int64 if name in tokens else torch.float32, name)
        for name, shape in options.shape.items()
    )
