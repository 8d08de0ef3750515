"""Number formats: the combinations that are allowed, with the bytes in which tensors are stored and sent."""

from __future__ import annotations

from petra_graph.compiler.memory.segment_memory import EncodedShare
from petra_graph.errors import Problem, SpecError, shown
from petra_graph.program.message_layout import ITEM_BYTES, encoded_dtype
from petra_graph.spec.model import PrecisionSpec


def check_precision(precision: PrecisionSpec) -> None:
    """Check that streams on a grid are stored and sent without rounding.

    Raises:
        SpecError: the type of buffers or channels would round what the grid makes exact. Paths begin at the
            specification's root.
    """
    if precision.streams != "grid":
        return
    own = "float64" if precision.compute == "float64" else "float32"
    problems = [
        Problem(
            message=f'{name} = {shown(stored)} rounds streams once more, and streams = "grid" is there to reconstruct them to the bit',
            hint=f'leave out {name}, or set precision.streams = "float"',
            path=("precision", name),
        )
        for name, stored in (("buffer_dtype", precision.buffer_dtype), ("channel_dtype", precision.channel_dtype))
        if encoded_dtype(stored, own) != own
    ]
    if problems:
        raise SpecError(problems)


def transport_of(precision: PrecisionSpec, kind: str) -> EncodedShare:
    """Return the share of its own bytes that a tensor has in a buffer and in a channel.

    Args:
        precision: the specification's `precision` table.
        kind: kind of the devices, "cpu" or "cuda".
    """
    own = "float64" if precision.compute == "float64" else "float32"
    offload = precision.buffer_device == "cpu" and kind == "cuda"
    return EncodedShare(
        buffer=0.0 if offload else ITEM_BYTES[encoded_dtype(precision.buffer_dtype, own)] / ITEM_BYTES[own],
        sample_buffer=0.0 if offload else 1.0,
        channel=ITEM_BYTES[encoded_dtype(precision.channel_dtype, own)] / ITEM_BYTES[own],
    )
