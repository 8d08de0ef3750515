"""How many bytes an encoded tensor takes: known from its shape, so that memory and messages can be planned.

| stored as | what there is |
|---|---|
| `as-streams` | the tensor itself |
| `float32`, `bfloat16`, `float16` | the tensor in that type |
| `int8` | the tensor in int8, and one float32 scale |

Decision: nothing grows. A type that is not smaller than the tensor's own leaves it as it is (float32 under
`precision.compute = "float32"` changes nothing), and integers, images and tokens, are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from petra_graph.spec.model import StoredDtype

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
FLOATING = ("float64", "float32", "bfloat16", "float16")
SCALE_BYTES = ITEM_BYTES["float32"]


def encoded_dtype(stored: StoredDtype, own: str) -> str:
    """Return what the elements of a tensor of type `own` are stored in."""
    if stored == "as-streams" or own not in FLOATING or ITEM_BYTES[stored] >= ITEM_BYTES[own]:
        return own
    return stored


def encoded_bytes(shape: Sequence[int], stored: StoredDtype, own: str) -> int:
    """Return the bytes of an encoded tensor, its scale included.

    Args:
        shape: with the batch dimension.
        stored: what the specification says.
        own: the tensor's own type: "float32" for streams, unless `precision.compute` is "float64".
    """
    dtype = encoded_dtype(stored, own)
    scale = SCALE_BYTES if dtype == "int8" != own else 0
    return prod(shape) * ITEM_BYTES[dtype] + scale
