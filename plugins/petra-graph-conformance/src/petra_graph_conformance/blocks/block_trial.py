"""One block under test, with its options and its inputs.

Decision: parameters are moved off their initial values, because a last layer that starts at zero hides every mistake
in F.
"""

# m micro-batch

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, cast

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import AdditiveCoupling, Block, Reversible, Shape, Streams, TwoFunctionCoupling
from petra_graph.blocks.randomness import fork_rng, random_key
from petra_graph.executor.numerics import NumericsContext
from petra_graph.executor.place_block import place
from petra_graph.kinds.block import BLOCK, BlockDeclaration
from petra_graph.kinds.plugin import load
from petra_graph.kinds.plugin_kind import PluginKind
from petra_graph.measure.build_block import listing
from petra_graph.spec.model import PrecisionSpec
from petra_graph_conformance.plugin_trial import Given, as_plugin, read_given

Draw = Callable[[Shape, torch.Generator], Tensor]
"""Draws one input stream of a given shape, the batch included."""
Compute = Literal["float64", "float32", "bfloat16"]

NODE = "examined"
NUDGE = 0.05


def normal(shape: Shape, generator: torch.Generator) -> Tensor:
    """Draw a stream from the standard normal distribution."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@frozen
class Tokens:
    """Draws a stream of tokens: int64, from 0 to below the size of the vocabulary."""

    vocabulary: int

    def __call__(self, shape: Shape, generator: torch.Generator) -> Tensor:
        """Draw a stream."""
        return torch.randint(self.vocabulary, shape, generator=generator)

    def __str__(self) -> str:
        """Return it as a trial shows it."""
        return f" (tokens below {self.vocabulary})"


class Settings(TypedDict, total=False):
    """Attributes of a trial that have a default."""

    batch: int
    draw: Draw
    seed: int


@frozen(kw_only=True)
class Trial:
    """A block with options and input shapes, and everything needed to run it.

    Attributes:
        block_class: what `build` names.
        declaration: of the block; a bare class declares itself.
        inputs: shapes of the streams that it reads, without the batch dimension.
        options: an instance of its own options class.
        batch: samples in a micro-batch.
        draw: draws one input stream of a given shape, the batch included: `Tokens(50_000)`, or a function of one's own.
        seed: parameters and samples follow from it.
        compute: of a run, in which the types of streams are judged; None: float64.
        memory_format: of streams, as `precision.memory_format`.
        distribution: the package that it comes from; "" where it comes from none.
    """

    block_class: type[Block]
    declaration: BlockDeclaration
    inputs: tuple[Shape, ...]
    options: Any
    batch: int = 4
    draw: Draw = normal
    seed: int = 0
    compute: Compute | None = None
    memory_format: Literal["channels-last", "contiguous"] = "channels-last"
    distribution: str = ""

    @staticmethod
    def of(
        block: Given,
        inputs: Sequence[Sequence[int]],
        options: Mapping[str, Any] | object = None,
        **settings: Unpack[Settings],
    ) -> Trial:
        """Make a trial.

        Args:
            block: a Block subclass, or what an entry point names.
            inputs: shapes of the streams that it reads, without the batch dimension.
            options: its `options` table as a spec would give it, or an instance of its options class; None: no keys.
            settings: attributes of the same name.

        Raises:
            SpecError: the block's options class refuses the options.
            PluginError: the code that a declaration names cannot be imported.
            TypeError: it is not a Block.
        """
        plugin = as_plugin(BLOCK, block)
        block_class = load(plugin)
        if not (isinstance(block_class, type) and issubclass(block_class, Block)):
            raise TypeError(f"{plugin.declaration.build} is not a subclass of petra_graph.blocks.Block")
        return Trial(
            block_class=block_class,
            declaration=cast(BlockDeclaration, plugin.declaration),
            inputs=tuple(tuple(shape) for shape in inputs),
            options=read_given(plugin, options),
            distribution=plugin.distribution,
            **settings,
        )

    @property
    def kind(self) -> PluginKind:
        return BLOCK

    @property
    def is_reversible(self) -> bool:
        return issubclass(self.block_class, Reversible)

    @property
    def has_residuals(self) -> bool:
        """Whether the block is a coupling of residual functions."""
        return issubclass(self.block_class, AdditiveCoupling | TwoFunctionCoupling)

    @property
    def name(self) -> str:
        """The block's name, for messages."""
        return self.block_class.__name__

    @property
    def about(self) -> str:
        """Its inputs and options, in words."""
        return f"{listing(self.inputs)}{self.draw if isinstance(self.draw, Tokens) else ''}; {self.options}"

    def attempt(self) -> None:
        """Raise an exception where the block does not take such inputs."""
        from petra_graph_conformance.blocks.micro_batches_through_block import Harness  # which imports this module

        harness = Harness(self)
        with harness.without_graph():
            harness.block(*harness.inputs(0))

    def numerics(self, compute: Compute) -> NumericsContext:
        """Return the numerics with which a stage would evaluate the block on the CPU."""
        precision = PrecisionSpec(compute=compute, memory_format=self.memory_format)
        return NumericsContext(device=torch.device("cpu"), precision=precision, seed=self.seed)

    def build(self, numerics: NumericsContext, copy: int = 0) -> Block:
        """Build the block as a stage would, in training mode; each `copy` has other parameters."""
        with fork_rng(random_key(self.seed, NODE, "initial", copy), torch.device("cpu")):
            block = place(self.block_class(self.inputs, self.options), numerics)
            with torch.no_grad():
                for parameter in block.parameters():
                    if parameter.is_floating_point():
                        parameter.add_(torch.randn_like(parameter), alpha=NUDGE)
        return block

    def streams(self, numerics: NumericsContext, m: int) -> Streams:
        """Draw the input streams of a micro-batch."""
        generator = torch.Generator().manual_seed(random_key(self.seed, "sample", m))
        return numerics.canonicalize([self.draw((self.batch, *shape), generator) for shape in self.inputs])
