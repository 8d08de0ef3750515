"""Bars of memory: their scale, and limits."""

from __future__ import annotations

from petra_graph.report.drawing.named_rows import Bar, bars, beside
from petra_graph.units import BINARY

MIB = 2**20


def row(total: int, limit: int | None = None) -> Bar:
    return Bar(name="x", parts=[("working", total, "red")], total=total, limit=limit)


def drawn(*rows: Bar) -> str:
    return beside(bars(rows, BINARY, "memory by part"))


def test_a_limit_within_reach_is_a_line():
    assert 'class="limit"' in drawn(row(90 * MIB, limit=100 * MIB))


def test_a_limit_far_away_stands_in_words():
    found = drawn(row(90 * MIB, limit=40 * 1024 * MIB))
    assert 'class="limit"' not in found
    assert ">90 MiB of 40 GiB</text>" in found


def test_too_little_memory_is_marked():
    found = drawn(row(90 * MIB, limit=50 * MIB))
    assert 'class="over"' in found
    assert 'class="limit"' in found


def test_stages_without_memory():
    assert ">0 B</text>" in drawn(row(0))
