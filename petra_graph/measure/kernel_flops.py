"""FLOPs of kernels that do several matrix products at once, from shapes: one number whatever kernel runs.

Which kernel torch picks depends on device, processor, mask, dropout and sizes, and for some it has no formula. A plan
shall not depend on what was at hand where it was made, so what counts are the matrix products that torch does where it
has no such kernel; backward there are twice as many.

attention   forward     scores = query keyᵀ, output = softmax(scores) value
            backward    the gradients of softmax(scores), value, query and key
            Kernels that keep no scores compute them once more in their backward, and may skip what a mask hides.
            Neither counts.
LSTM        forward     gates = input weight_inputᵀ + hidden weight_hiddenᵀ, at every step
            backward    the gradients of all four; of the first hidden state too, which is often not asked for
            OneDNN's kernel, for number types that the processor has; on the meta device and elsewhere there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

_ATTENTION = "aten::_scaled_dot_product_"
"""How torch names all kernels of attention."""
_LSTM = "aten::mkldnn_rnn_layer"


def kernel_flops(func: Any, args: Sequence[Any]) -> int | None:
    """Return the FLOPs of one of these kernels, None for another operation.

    Where attention or an LSTM is several operations, those count as what they are.
    """
    name = func.name().partition(".")[0]
    backward = name.endswith("_backward")
    if name.startswith(_ATTENTION):
        forward = _attention(*(tensor.shape for tensor in args[backward : backward + 3]))
    elif name.startswith(_LSTM):
        forward = _products(*(tensor.shape for tensor in args[:3]))
    else:
        return None
    return 2 * forward if backward else forward


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """Key and value may have fewer heads than the query, which share them."""
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _products(rows: Sequence[int], *weights: Sequence[int]) -> int:
    return 2 * prod(rows[:-1]) * sum(map(prod, weights))
