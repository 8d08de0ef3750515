"""The base classes of blocks, for authors.

A reversible block author subclasses `AdditiveCoupling` and writes the residual function; everything else (inverse,
gradient with one evaluation, dropout, statistics, autocast) comes with it.

| class | a block | the author writes |
|---|---|---|
| `AdditiveCoupling` | reversible: (x, t) -> (t + F(x), x) | `residual(x)`: F |
| `TwoFunctionCoupling` | reversible: y1 = x1 + F(x2), y2 = x2 + G(y1) | `f(x)` and `g(x)` |
| `Coupling` and its other subclasses | reversible: affine, midpoint, momentum, ... | the table in petra_graph/blocks/README.md |
| `Reversible` | reversible in another way | `forward(*streams)` and `inverse(*streams)` |
| `Buffered` | any: its input waits in a buffer | `forward(*streams)` |
| `Head` | the last one, whose output the loss reads | `forward(*streams)` |

Each is a `torch.nn.Module`, built as `cls(inputs, **options)`: `inputs` are the shapes of the streams that it reads, without the batch,
and its keyword parameters are its options. `forward` returns a tuple of streams [n, *shape]. `kind` and `streams`, the number of
streams that it reads, are attributes of the class; so are `undecayed`, names of parameters without weight decay, and `tables`, of those with
a row for each position or the like; a class says `draws = False` if its code draws no random numbers. For blocks that write
`reverse_vjp` themselves there are `leaf`, `backpropagate`, `Reversed`, `reseed`, `rng_scope` and `frozen_statistics`. `micro_batch()`
is the time, for values that change in a training. `petra-graph check` tries a block.
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
from petra_graph.blocks.couplings import MidpointCoupling as MidpointCoupling
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
