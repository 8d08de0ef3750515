"""The element types of encoded tensors, known before a run, so that memory and messages can be planned.

| stored as | contents |
|---|---|
| `as-streams` | the tensor itself |
| `float32`, `bfloat16`, `float16` | the tensor in that type |
| `int8` | the tensor in int8, and one float32 scale |

Decision: no tensor grows. A type that is not smaller than the tensor's own leaves it as it is (float32 under
`precision.compute = "float32"` changes no tensor), and integers, images and tokens, are never encoded.
"""

from __future__ import annotations

from collections.abc import Mapping

from petra_graph.spec.model import StoredDtype

_TYPES: Mapping[int, tuple[str, ...]] = {
    1: ("int8", "uint8", "bool"),
    2: ("float16", "bfloat16", "int16", "uint16"),
    4: ("float32", "int32", "uint32"),
    8: ("float64", "int64", "uint64", "complex64"),
    16: ("complex128",),
}
ITEM_BYTES: Mapping[str, int] = {name: size for size, names in _TYPES.items() for name in names}
FLOATING = ("float64", "float32", "bfloat16", "float16")


def encoded_dtype(stored: StoredDtype, own: str) -> str:
    """Return the type in which the elements of a tensor of type `own` are stored."""
    if stored == "as-streams" or own not in FLOATING or ITEM_BYTES[stored] >= ITEM_BYTES[own]:
        return own
    return stored
