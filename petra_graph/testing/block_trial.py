"""A block under test, micro-batches through it and back in the executor's own runners, and what checks compare and find."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal, Self

import numpy as np
import torch
from attrs import frozen
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from petra_graph.blocks import (
    Block,
    Head,
    Reversed,
    Reversible,
    Shape,
    Streams,
    backpropagate,
    frozen_statistics,
    leaf,
    random_key,
)
from petra_graph.blocks.randomness import fork_rng
from petra_graph.errors import PluginError, SpecError
from petra_graph.executor.head import HeadRunner
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.executor.runners import BodyRunner, Recompute, Reconstruct
from petra_graph.plugins.contract import Plugin, PluginKind, make, plugin_of, read_options
from petra_graph.plugins.kinds import BLOCK
from petra_graph.plugins.tensor_trees import Tree, leaves
from petra_graph.spec.model import PrecisionSpec

ROUNDINGS = 2**12
"""Units of rounding that a result may be off by: sums over a few thousand terms, in another order."""
Compute = Literal["float64", "float32", "bfloat16"]
Draw = Callable[[Shape, torch.Generator], Tensor]
"""Draws an input stream of a given shape, the batch included; one after another, in the order of the inputs."""
NODE, MICRO_BATCHES = "checked", 3
_NUDGE = 0.05


def normal(shape: Shape, generator: torch.Generator) -> Tensor:
    """Draw a stream from the standard normal distribution."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def tokens(vocabulary: int) -> Draw:
    """Return what draws streams of tokens, int64 from 0 to below a vocabulary."""
    return lambda shape, generator: torch.randint(vocabulary, shape, generator=generator)


@frozen(kw_only=True)
class Trial:
    """A block with options, and the streams that it reads.

    Attributes:
        plugin: the block.
        options: an instance of its options class.
        inputs: shapes of the streams, without the batch.
        batch: samples in a micro-batch.
        draw: draws an input stream; `tokens(50_000)` for a block that reads tokens.
        seed: parameters and streams follow from it.
        memory_format: of streams, as `precision.memory_format`.
        compute: the precision of the run; None: in each, float64 where one is enough.
    """

    plugin: Plugin
    options: Any
    inputs: tuple[Shape, ...]
    batch: int = 4
    draw: Draw = normal
    seed: int = 0
    memory_format: Literal["channels-last", "contiguous"] = "channels-last"
    compute: Compute | None = None

    @classmethod
    def of(cls, block: Any, inputs: Sequence[Sequence[int]], options: Any = None, **more: Any) -> Self:
        """Make a trial of a block's class or declaration, with its `options` table; errors as of `as_plugin`."""
        plugin, options = as_plugin(BLOCK, block, options)
        return cls(plugin=plugin, options=options, inputs=tuple(map(tuple, inputs)), **more)

    @property
    def block_class(self) -> type[Block]:
        found: type[Block] = self.plugin.code
        return found

    def numerics(self, compute: Compute) -> NumericsContext:
        """Return the numerics with which a stage would evaluate the block on the CPU."""
        precision = PrecisionSpec(compute=compute, memory_format=self.memory_format)
        return NumericsContext(device=torch.device("cpu"), precision=precision, seed=self.seed)

    def build(self, numerics: NumericsContext, copy: int = 0) -> Block:
        """Build the block as a stage would, in training mode; each `copy` has other parameters."""
        with fork_rng(random_key(self.seed, NODE, "initial", copy), torch.device("cpu")):
            block = place(make(self.plugin, self.inputs, options=self.options), numerics)
            with torch.no_grad():
                for parameter in block.parameters():
                    if parameter.is_floating_point():
                        parameter.add_(torch.randn_like(parameter), alpha=_NUDGE)
        return block

    def streams(self, numerics: NumericsContext, m: int) -> Streams:
        """Draw the input streams of micro-batch m."""
        generator = torch.Generator().manual_seed(random_key(self.seed, "sample", m))
        drawn = (self.draw((self.batch, *shape), generator) for shape in self.inputs)
        return numerics.canonicalize(list(drawn))


@frozen(kw_only=True)
class RoundTrip:
    """A micro-batch through a block and back; `gradients` are those of the outputs."""

    m: int
    inputs: Streams
    outputs: Streams
    gradients: Streams
    back: Reversed


class Harness:
    """A trial's block in its runner: reversible ones keep nothing, others their input; the loss of a head is linear."""

    def __init__(self, trial: Trial, compute: Compute | None = None, copy: int = 0) -> None:
        self.compute: Compute = compute or trial.compute or "float64"
        self.trial, self.numerics = trial, trial.numerics(self.compute)
        self.block = trial.build(self.numerics, copy)
        self.loss = _Linear()
        self.runner: BodyRunner | HeadRunner
        modules, numerics = {NODE: self.block}, self.numerics
        if isinstance(self.block, Head):
            self.runner = HeadRunner(modules, numerics, reads_samples=False, loss=self.loss)
        elif isinstance(self.block, Reversible):
            self.runner = Reconstruct(modules, numerics, reads_samples=False)
        else:
            self.runner = Recompute(modules, numerics, reads_samples=False)

    def inputs(self, m: int) -> Streams:
        return self.trial.streams(self.numerics, m)

    def peek(self, m: int, inputs: Streams) -> Streams:
        """Return the outputs of a training micro-batch, without a graph; the block's state stays as it is."""
        return self.runner.run_without_graph(m, inputs)

    def forward(self, m: int, inputs: Streams) -> Streams:
        if isinstance(self.runner, BodyRunner):
            return self.runner.forward(m, inputs)
        target = self.runner.returned(drawn_gradients(m, self.peek(m, inputs)))
        self.runner.forward_backward(m, inputs, target)
        return self.loss.outputs

    def backward(self, m: int, outputs: Streams, gradients: Streams) -> Reversed:
        return self.runner.backward(m, outputs if isinstance(self.block, Reversible) else None, gradients)

    def train(self, count: int = MICRO_BATCHES) -> Iterator[RoundTrip]:
        """Run micro-batches as a stage of this depth does; gradients of parameters add up."""
        inputs = [self.inputs(m) for m in range(count)]
        outputs = [self.forward(m, streams) for m, streams in enumerate(inputs)]
        for m in range(count):
            gradients = drawn_gradients(m, outputs[m])
            back = self.backward(m, outputs[m], gradients)
            yield RoundTrip(m=m, inputs=inputs[m], outputs=outputs[m], gradients=gradients, back=back)

    def plain(self, m: int, inputs: Streams, gradients: Streams) -> tuple[Streams, Streams]:
        """Return the outputs and the inputs' gradients under plain autograd; parameters' gradients add up in `grad`."""
        own = tuple(map(leaf, inputs))
        with self.numerics.node(NODE, m):
            outputs = self.block(*own)
        return tuple(one.detach() for one in outputs), backpropagate(outputs, gradients, own)

    @contextmanager
    def alone(self, m: int = 0) -> Iterator[None]:
        """Set the numerics of a training forward without a graph, for calls of the block itself."""
        with torch.no_grad(), frozen_statistics(self.block), self.numerics.node(NODE, m):
            yield


class _Linear:
    """A loss whose gradient with respect to each output is its target."""

    outputs: Streams

    def __call__(self, output: Tree, target: Tree) -> Tensor:
        self.outputs = tuple(one.detach() for one in leaves(output))
        return torch.stack([(one * by).sum() for one, by in zip(leaves(output), leaves(target), strict=True)]).sum()

    def metrics(self, output: Tree, target: Tree) -> Mapping[str, Tensor]:
        return {}


def drawn_gradients(m: int, outputs: Streams) -> Streams:
    """Draw the loss's gradient with respect to each output of a micro-batch."""
    generator = torch.Generator().manual_seed(random_key("gradient", m))
    return tuple(torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one.dtype) for one in outputs)


def coarsest(harness: Harness) -> torch.dtype:
    """Return the type whose rounding the block's values have: float32 where a part of it computes in that, or in a coarser type."""
    with harness.alone(), Rounding() as rounding:
        harness.block(*harness.inputs(0))
    return torch.float32 if rounding.found else harness.numerics.dtype


def as_plugin(kind: PluginKind, given: Any, options: Any = None) -> tuple[Plugin, Any]:
    """Return a plugin without a distribution, and its options.

    Args:
        kind: of the plugin.
        given: its code, or a plugin.
        options: its `options` table, or the options that a plugin was read with; None: no keys.

    Raises:
        TypeError: it is no plugin of this kind.
        SpecError: these are not its options.
    """
    plugin = given
    if not isinstance(given, Plugin):
        named = ":".join(str(getattr(given, name, "")) for name in ("__module__", "__qualname__"))
        try:
            plugin = plugin_of(kind, named, given)
        except PluginError as error:
            raise TypeError(str(error)) from error
    if isinstance(options, plugin.options):
        return plugin, options
    read, problems = read_options(plugin, options or {}, ("options",))
    if problems:
        raise SpecError(problems)
    return plugin, read


class BrokenPromise(AssertionError):
    """What was found, and is not as training needs it."""


class NotTried(Exception):
    """Why a check says nothing of this plugin."""


def expect(kept: bool, found: str, value: object = None) -> None:
    if not kept:
        raise BrokenPromise(found.format(type(value).__name__))


def expect_close(
    message: str, found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype, roundings: int = ROUNDINGS
) -> None:
    """Compare tensors, all together, with units of rounding of the coarsest type that they were computed in."""
    if not all(bool(one.isfinite().all()) for one in expected):
        raise NotTried("it computes values that are not finite of what it was given")
    error, allowed = relative_error(found, expected), roundings * torch.finfo(dtype).eps
    if not error <= allowed:  # not a number compares as false
        raise BrokenPromise(f"{message}: relative error {error:.1e} in {name_of(dtype)}, allowed {allowed:.1e}")


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return |found - expected| / |expected|, norms over all tensors together; absolute where `expected` is zero."""
    pairs = [(one.detach().double(), other.detach().double()) for one, other in zip(found, expected, strict=True)]
    difference = math.hypot(*(float((one - other).norm()) for one, other in pairs))
    size = math.hypot(*(float(other.norm()) for _, other in pairs))
    return difference / size if size else difference


def equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def generators() -> Mapping[str, bytes]:
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state()).encode(),  # noqa: NPY002
        "Python": repr(random.getstate()).encode(),
    }


def state_of(block: nn.Module) -> dict[str, Tensor]:
    both = (*block.named_parameters(), *block.named_buffers())
    return {name: deepcopy(one.detach()) for name, one in both}


def gradients_of(block: nn.Module) -> list[Tensor]:
    trained = (one for one in block.parameters() if one.requires_grad)
    return [torch.zeros_like(one) if one.grad is None else one.grad.to_dense() for one in trained]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operation that makes fewer bits of a float64 value that follows from the streams; all values, without streams."""

    def __init__(self, streams: Iterable[Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""
        self._made = None if streams is None else {id(one): one for one in streams}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        result = func(*args, **(kwargs or {}))
        made, read = _tensors(result), _tensors((args, kwargs or {}))
        of_streams = self._made is None or [one for one in read if id(one) in self._made and one.dtype == torch.float64]
        coarse = [one for one in made if one.is_floating_point() and one.dtype != torch.float64]
        if of_streams and coarse:
            self.found = self.found or name_of(coarse[0].dtype)
        if self._made is not None and any(id(one) in self._made for one in read):
            self._made.update({id(one): one for one in made})
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]
