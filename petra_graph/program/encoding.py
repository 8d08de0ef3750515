"""The element types of encoded tensors, known before a run, so that memory and messages can be planned.

| stored as | contents |
|---|---|
| `as-streams` | the tensor itself |
| `float32`, `bfloat16`, `float16` | the tensor in that type |
| `int8` | the tensor in int8, and one float32 scale |

Decision: nothing grows. A type that is not smaller than the tensor's own leaves it as it is (float32 under
`precision.compute = "float32"` changes nothing), and integers, images and tokens, are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def encoded_dtype(stored: StoredDtype, own: str) -> str:
    """Return the type in which the elements of a tensor of type `own` are stored."""
    if stored == "as-streams" or own not in FLOATING or ITEM_BYTES[stored] >= ITEM_BYTES[own]:
        return own
    return stored
