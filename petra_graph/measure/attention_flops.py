"""FLOPs of attention from the shapes of query, key and value: one number whatever kernel runs.

Torch has a kernel for almost every device, picks another where a mask, dropout or head sizes ask for it, and has no
formula for some. What counts here are the matrix products that attention is made of, two forward and four backward,
as where it is computed by matrix products:

    forward     scores = query keyᵀ, output = softmax(scores) value
    backward    the gradients of softmax(scores), value, query and key

Kernels that keep no scores compute them once more in their backward, and may skip what a mask hides. Neither counts: a
plan shall not depend on the kernel that was at hand where it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

_KERNELS = "aten::_scaled_dot_product_"
"""How torch names every one of them."""


def attention_flops(func: Any, args: Sequence[Any]) -> int | None:
    """Return the FLOPs of a kernel of attention, None for another operation.

    A kernel is one operation; where attention is several, as by matrix products, those count as what they are.
    """
    name = func.name().partition(".")[0]
    if not name.startswith(_KERNELS):
        return None
    backward = name.endswith("_backward")
    query, key, value = (tensor.shape for tensor in args[backward : backward + 3])
    # Key and value may have fewer heads than the query, which share them.
    forward: int = 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    return 2 * forward if backward else forward
