"""Bars of memory: their scale, and limits."""

from __future__ import annotations

from petra_graph.report.plan.stage_rows import Bar, bars

MIB = 2**20


def row(total: int, limit: int | None = None) -> Bar:
    return Bar(name="x", counts={"working": total, "total": total}, limit=limit)


def test_a_limit_within_reach_is_a_line():
    assert 'class="limit"' in bars([row(90 * MIB, limit=100 * MIB)])


def test_a_limit_far_away_stands_in_words():
    drawn = bars([row(90 * MIB, limit=40 * 1024 * MIB)])
    assert 'class="limit"' not in drawn
    assert ">90 MiB of 40 GiB</text>" in drawn


def test_too_little_memory_is_marked():
    drawn = bars([row(90 * MIB, limit=50 * MIB)])
    assert 'class="over"' in drawn
    assert 'class="limit"' in drawn


def test_stages_without_memory():
    assert ">0 B</text>" in bars([row(0)])
