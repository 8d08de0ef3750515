"""The base classes of blocks, for authors: plugins/guide/blocks.md says how to write one, petra_graph/blocks/README.md has the couplings.

A block is a `torch.nn.Module`, built as `cls(inputs, **options)`: `inputs` are the shapes of the streams that it reads, without the batch, and
its keyword parameters are its options. `forward` returns a tuple of streams [n, *shape]. Attributes of the class are in `Block`. For blocks that
write `reverse_vjp` themselves there are `leaf`, `backpropagate`, `Reversed`, `reseed`, `rng_scope` and `frozen_statistics`. `micro_batch()` is the
time, for values that change in a training. `petra-graph check` tries a block.
"""

from petra_graph.blocks.block_kinds import Block as Block
from petra_graph.blocks.block_kinds import Buffered as Buffered
from petra_graph.blocks.block_kinds import Head as Head
from petra_graph.blocks.block_kinds import Reversed as Reversed
from petra_graph.blocks.block_kinds import Reversible as Reversible
from petra_graph.blocks.block_kinds import Shape as Shape
from petra_graph.blocks.block_kinds import Streams as Streams
from petra_graph.blocks.couplings import AdditiveCoupling as AdditiveCoupling
from petra_graph.blocks.couplings import AffineCoupling as AffineCoupling
from petra_graph.blocks.couplings import Coupling as Coupling
from petra_graph.blocks.couplings import MomentumCoupling as MomentumCoupling
from petra_graph.blocks.couplings import TwoFunctionCoupling as TwoFunctionCoupling
from petra_graph.blocks.differentiation import backpropagate as backpropagate
from petra_graph.blocks.differentiation import frozen_statistics as frozen_statistics
from petra_graph.blocks.differentiation import leaf as leaf
from petra_graph.blocks.dual_residual import DualResidualEntry as DualResidualEntry
from petra_graph.blocks.dual_residual import DualResidualStep as DualResidualStep
from petra_graph.blocks.randomness import micro_batch as micro_batch
from petra_graph.blocks.randomness import random_key as random_key
from petra_graph.blocks.randomness import reseed as reseed
from petra_graph.blocks.randomness import rng_scope as rng_scope
