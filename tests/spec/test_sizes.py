from __future__ import annotations

import pytest

from petra_graph.units import byte_count


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("40GiB", 40 * 2**30),
        ("40GB", 40 * 10**9),
        ("1.5 MB", 1_500_000),
        ("123", 123),
        ("2KiB", 2048),
        ("40kB", 40_000),
        ("7B", 7),
    ],
)
def test_sizes_are_read_in_both_kinds_of_units(text, size):
    assert byte_count(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GB", "40 gib", "4GiBs", "1e9"])
def test_a_text_that_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match='as in "40GiB" or "40GB"'):
        byte_count(text)
