"""The base of all couplings: which of their streams are coupled, and which only accompany them.

A coupling changes some streams by functions of others. Streams beyond those that it couples are the *context* of its
functions: masks, positions, the output of an encoder. A block that reads them sets `streams` to the number of all,
takes them as further arguments of its functions, and passes them through unchanged. Floating-point context gets its
gradient, summed over all functions and consumers; integers and booleans have none.

    class Masked(TwoFunctionCoupling):
        streams = 3                        # x1, x2, mask

        def f(self, x, mask): return self.attention(x, mask)
        def g(self, x, mask): return self.mlp(x)

Context travels with the streams, in every message between stages. What is the same for all samples (a causal mask, the
positions 0, 1, ...) is better kept in a buffer of the block.
"""

from __future__ import annotations

from typing import ClassVar

from petra_graph.blocks.block_kinds import Reversible


class Coupling(Reversible):
    """A reversible block around functions that its author writes.

    Its backward evaluates each of `functions` once: the value reconstructs the input, the graph gives the gradient.
    """

    streams: ClassVar[int | None] = 2
    functions: ClassVar[tuple[str, ...]] = ("residual",)
    """Names of the methods that an author writes."""
    reversible_in_evaluation: ClassVar[bool] = True
    """Whether `inverse` works in evaluation mode as well."""
