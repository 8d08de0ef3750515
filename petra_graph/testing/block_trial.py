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
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from petra_graph.blocks import (
    Block,
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
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.executor.runners import BodyRunner, Recompute, Reconstruct
from petra_graph.plugins.contract import Plugin, PluginKind, make, plugin_of, read_options
from petra_graph.plugins.kinds import BLOCK
from petra_graph.spec.model import PrecisionSpec

ROUNDINGS = 2**12
"""Units of rounding that a result may be off by: sums over a few thousand terms, in another order."""
Compute = Literal["float64", "float32", "bfloat16"]
Draw = Callable[[Shape, torch.Generator], Tensor]
"""Draws an input stream of a given shape, the batch included; one after another, in the order of the inputs."""
NODE, MICRO_BATCHES = "checked", 3
_NUDGE = 0.05


class BrokenPromise(AssertionError):
    """What was found, and is not as training needs it."""


class NotTried(Exception):
    """Why a check says nothing of this plugin."""


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
        """Make a trial of a block's class, with its `options` table; errors as of `as_plugin`."""
        plugin, options = as_plugin(BLOCK, block, options)
        return cls(plugin=plugin, options=options, inputs=tuple(map(tuple, inputs)), **more)


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


@frozen(kw_only=True)
class RoundTrip:
    """A micro-batch through a block and back; `gradients` are those of the outputs."""

    m: int
    inputs: Streams
    outputs: Streams
    gradients: Streams
    back: Reversed


class Harness:
    """A trial's block as a stage on the CPU would have it: reversible ones keep nothing, others, and heads, their input.

    Its parameters are off their initial values: a last layer that starts at zero hides every mistake. Each `copy` has other parameters.
    """

    def __init__(self, trial: Trial, compute: Compute | None = None, copy: int = 0) -> None:
        self.compute: Compute = compute or trial.compute or "float64"
        self.trial = trial
        precision = PrecisionSpec(compute=self.compute, memory_format=trial.memory_format)
        self.numerics = NumericsContext(device=torch.device("cpu"), precision=precision, seed=trial.seed)
        self.dtype = self.numerics.dtype
        with fork_rng(random_key(trial.seed, NODE, "initial", copy), torch.device("cpu")):
            self.block: Block = place(make(trial.plugin, trial.inputs, options=trial.options), self.numerics)
            with torch.no_grad():
                for parameter in self.block.parameters():
                    if parameter.is_floating_point():
                        parameter.add_(torch.randn_like(parameter), alpha=_NUDGE)
        kind: type[BodyRunner] = Reconstruct if isinstance(self.block, Reversible) else Recompute
        self.runner = kind({NODE: self.block}, self.numerics, reads_samples=False)

    def inputs(self, m: int) -> Streams:
        """Draw the input streams of micro-batch m."""
        generator = torch.Generator().manual_seed(random_key(self.trial.seed, "sample", m))
        drawn = [self.trial.draw((self.trial.batch, *shape), generator) for shape in self.trial.inputs]
        return self.numerics.canonicalize(drawn)

    def peek(self, m: int, inputs: Streams) -> Streams:
        """Return the outputs of a training micro-batch, without a graph; the block's state stays as it is."""
        return self.runner.run_without_graph(m, inputs)

    def forward(self, m: int, inputs: Streams) -> Streams:
        return self.runner.forward(m, inputs)

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

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all parameters and buffers."""
        both = (*self.block.named_parameters(), *self.block.named_buffers())
        return {name: deepcopy(one.detach()) for name, one in both}

    def parameter_gradients(self) -> list[Tensor]:
        """Return the gradients of what is trained."""
        trained = (one for one in self.block.parameters() if one.requires_grad)
        return [torch.zeros_like(one) if one.grad is None else one.grad.to_dense() for one in trained]


def drawn_gradients(m: int, outputs: Streams) -> Streams:
    """Draw the loss's gradient with respect to each output of a micro-batch."""
    generator = torch.Generator().manual_seed(random_key("gradient", m))
    return tuple(torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one.dtype) for one in outputs)


def expect(kept: bool, found: str) -> None:
    if not kept:
        raise BrokenPromise(found)


def expect_close(
    message: str, found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype, roundings: int = ROUNDINGS
) -> None:
    """Compare tensors, |found - expected| / |expected| with norms over all of them, with units of rounding of a type; absolutely, if zero is expected."""
    if not all(bool(one.isfinite().all()) for one in expected):
        raise NotTried("it computes values that are not finite of what it was given")
    pairs = [(one.detach().double(), other.detach().double()) for one, other in zip(found, expected, strict=True)]
    difference = math.hypot(*(float((one - other).norm()) for one, other in pairs))
    error = difference / (math.hypot(*(float(other.norm()) for _, other in pairs)) or 1.0)
    allowed = roundings * torch.finfo(dtype).eps
    if not error <= allowed:  # not a number compares as false
        raise BrokenPromise(f"{message}: relative error {error:.1e} in {name_of(dtype)}, allowed {allowed:.1e}")


def equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> str:
    """Return the names of tensors that are others than before."""
    return ", ".join(name for name, one in now.items() if name not in before or not torch.equal(one, before[name]))


@contextmanager
def expect_still_generators(found: str) -> Iterator[None]:
    """Expect that the global generators stand where they stood; a message ends with the names of those that moved."""

    def states() -> Mapping[str, str]:
        of_torch, of_numpy = torch.get_rng_state().numpy().tobytes(), np.random.get_state()  # noqa: NPY002
        return {"torch": repr(of_torch), "numpy": repr(of_numpy), "Python": repr(random.getstate())}

    before = states()
    yield
    moved = [name for name, state in states().items() if state != before[name]]
    expect(not moved, f"{found} the global generator of {' and '.join(moved)}")


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operation that makes fewer bits of a float64 value that follows from the streams."""

    def __init__(self, streams: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""
        self._made = {id(one): one for one in streams}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        result = func(*args, **(kwargs or {}))
        made, read = _tensors(result), [one for one in _tensors((args, kwargs or {})) if id(one) in self._made]
        coarse = [one for one in made if one.is_floating_point() and one.dtype != torch.float64]
        if coarse and any(one.dtype == torch.float64 for one in read):
            self.found = self.found or name_of(coarse[0].dtype)
        if read:
            self._made.update({id(one): one for one in made})
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]
