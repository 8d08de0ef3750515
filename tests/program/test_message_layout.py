"""The type and the bytes of an encoded tensor, from its shape."""

from __future__ import annotations

import pytest

from petra_graph.program.message_layout import encoded_dtype
from tests.support.costs import encoded_bytes


@pytest.mark.parametrize(
    ("stored", "own", "expected"),
    [
        ("as-streams", "float32", "float32"),
        ("bfloat16", "float32", "bfloat16"),
        ("int8", "float32", "int8"),
        ("int8", "float64", "int8"),
        ("int8", "uint8", "uint8"),
        ("bfloat16", "int64", "int64"),
        ("int8", "bool", "bool"),
    ],
)
def test_what_is_no_floating_type_stays(stored, own, expected):
    assert encoded_dtype(stored, own) == expected


@pytest.mark.parametrize(
    ("stored", "own", "expected"),
    [
        ("as-streams", "float64", 8 * 24),
        ("bfloat16", "float64", 2 * 24),
        ("bfloat16", "float32", 2 * 24),
        ("int8", "float32", 24 + 4),
        ("int8", "uint8", 24),
        ("int8", "int64", 8 * 24),
    ],
)
def test_bytes(stored, own, expected):
    assert encoded_bytes((2, 3, 4), stored, own) == expected


def test_nothing_but_a_scale_is_left_of_no_elements():
    assert encoded_bytes((0, 4), "int8", "float32") == 4
    assert encoded_bytes((), "bfloat16", "float32") == 2
