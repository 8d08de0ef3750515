"""Numbers for people: three digits, the right prefix, and nothing that is something reads as nothing."""

from __future__ import annotations

import pytest

from petra_graph.units import (
    bounded,
    byte_count,
    count,
    duration,
    factor,
    listed,
    memory,
    number,
    one_line,
    percent,
    plural,
    rate,
    seconds,
)


@pytest.mark.parametrize(
    ("expected", "written"),
    [
        ("1,023 B", memory(1023)),
        ("1.5 MiB", memory(3 * 2**19)),
        ("442 µs", seconds(442e-6)),
        ("25.6 M", count(25_557_032)),
        ("54.3 %", percent(0.543)),
        ("8.50", number(8.5)),
        ("26,256 samples/s", rate(26256.41)),
        ("1.17 x", factor(1.174)),
        ("1,000 stages", plural(1000, "stage")),
        ("ab…", bounded("abcd", 3)),
        ("a b c", one_line("a\nb\x1bc")),
        ("98.89 %", percent(0.98894, 2)),
        ("a, b and 1 more", listed("abc", 2)),
    ],
)
def test_texts(expected, written):
    assert written == expected


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0125, "12.5 ms"), (200, "3 min 20 s"), (3599.9, "60 min 0 s"), (20_400, "5 h 40 min"), (198_000, "2 d 7 h")],
)
def test_durations(value, written):
    assert duration(value) == written


@pytest.mark.parametrize(
    ("text", "size"), [("40GiB", 40 * 2**30), ("1.5 MB", 1_500_000), ("123", 123), ("40kB", 40_000)]
)
def test_sizes_are_read_in_both_kinds_of_units(text, size):
    assert byte_count(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GB", "40 gib", "4GiBs"])
def test_a_text_that_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match='as in "40GiB" or "40GB"'):
        byte_count(text)
