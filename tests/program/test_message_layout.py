"""The bytes of an encoded tensor, from its shape; what is no floating type stays."""

from __future__ import annotations

import pytest

from tests.support.costs import encoded_bytes


@pytest.mark.parametrize(
    ("stored", "own", "expected"),
    [
        ("as-streams", "float64", 8 * 24),
        ("bfloat16", "float64", 2 * 24),
        ("bfloat16", "float32", 2 * 24),
        ("int8", "float32", 24 + 4),
        ("int8", "bool", 24),
        ("int8", "uint8", 24),
        ("int8", "int64", 8 * 24),
    ],
)
def test_bytes(stored, own, expected):
    assert encoded_bytes((2, 3, 4), stored, own) == expected


def test_nothing_but_a_scale_is_left_of_no_elements():
    assert encoded_bytes((0, 4), "int8", "float32") == 4
    assert encoded_bytes((), "bfloat16", "float32") == 2
