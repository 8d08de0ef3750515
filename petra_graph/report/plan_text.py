"""A plan on a terminal: six answers, the tables that are short or asked for, and last, where a reader's eye is, the warnings.

The answers are whether it fits, how full it is, how fast, how stale, what to change, and how sure all that is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.columns import Columns
from rich.console import RenderableType
from rich.text import Text

from petra_graph.program.plan_document import Document, excess, room
from petra_graph.report.plan_tables import (
    device_columns,
    graph_lines,
    notes_on_stages,
    ranges_label,
    stage_columns,
    title_lines,
    totals,
)
from petra_graph.report.tables import heading, is_short, listed_lines, pair_columns, render, table, tables, worded
from petra_graph.units import PLAIN, duration, factor, listed, memory, noun, one_line, percent, plural, rate

ASSUMPTIONS_PAGE = "petra_graph/compiler/README.md#assumptions"
_ACTION = re.compile(r"[:;] ((?:set |[a-z_]+\.[a-z_]+ = ).*?)(?:\. [A-Z].*)?$")
"""What a warning says to do first: keys to set."""
_TIMES = "times are "
"""The beginning of the assumption that says where a plan's times are from."""

Answers = list[tuple[str, str]]
"""Questions, in a word each, and what answers them, the most important first."""


def plan_text(
    document: Document, *, width: int, colour: bool = False, stages: bool = False, verbose: bool = False
) -> str:
    """Write a plan for a terminal: the answers and the warnings, and the tables of stages and devices that are short.

    Args:
        document: the plan.
        width: of the terminal, in columns; 60 are enough.
        colour: write ANSI escapes.
        stages: write the table of stages with all its columns, however long it is.
        verbose: write everything.
    """
    return render(_sections(document, width, stages or verbose, verbose), width=width, colour=colour)


def _sections(document: Document, width: int, stages: bool, verbose: bool) -> Iterator[RenderableType]:
    yield Text(one_line(document["name"]), "bold")
    yield worded(answers(document))
    yield Text("\n" + "\n".join(title_lines(document)))
    if verbose:
        yield heading("graph")
        yield from listed_lines(graph_lines(document["nodes"]))
    columns = stage_columns(document, max(16, width // 4), brief=not stages)
    if stages or is_short(columns, width):
        yield heading("stages")
        yield from tables(columns, width)
        yield from listed_lines(notes_on_stages(document))
    columns = device_columns(document, max(16, width // 5))
    if verbose or is_short(columns, width):
        yield heading("devices")
        yield from tables(columns, width)
    if verbose:
        made = [table(pair_columns(title, pairs)) for title, pairs in totals(document)]
        yield Text()
        yield Columns(made, padding=(1, 4))
    yield from assumption_lines(document["assumptions"], verbose=verbose)
    if document["warnings"]:
        yield heading("warnings")
        yield from listed_lines(document["warnings"], "!", "yellow")


def assumption_lines(said: Sequence[str], *, verbose: bool) -> Iterator[RenderableType]:
    """Yield the assumptions of a plan, or a line that says where they are."""
    if said:
        yield heading("assumptions", "" if verbose else f"{len(said)}: see --verbose, and {ASSUMPTIONS_PAGE}")
        yield from listed_lines(said, "-") if verbose else ()


def answers(document: Document) -> Answers:
    """Return the six answers."""
    return [
        ("fits", _fit(document)),
        ("fullest", _fullest(document)),
        ("speed", _speed(document)),
        ("staleness", _staleness(document)),
        ("change", _change(document)),
        ("how sure", _certainty(document)),
    ]


def _fullest_device(document: Document) -> Document:
    """Return the device whose memory is used most: by its share where the memory of every device is known, else by its bytes."""
    devices: list[Document] = document["devices"]
    known = all(room(device) for device in devices)
    return max(devices, key=lambda device: device["bytes"]["total"] / ((room(device) or 1) if known else 1))


def _fit(document: Document) -> str:
    devices = document["devices"]
    unknown = [device for device in devices if not room(device)]
    over = [device for device in devices if excess(device)]
    if over:
        most = max(over, key=excess)
        others = f"; {plural(len(over) - 1, 'other device')} too" if len(over) > 1 else ""
        return f"no; {_name(most)} needs {memory(excess(most))} more than its {memory(room(most) or 0)}{others}"
    if unknown:
        kinds = listed(dict.fromkeys(one_line(device["type"]) for device in unknown))
        return f"unknown; the memory of {kinds} is not stated: set partition.memory"
    fullest = _fullest_device(document)
    whole = room(fullest) or 1
    left = whole - fullest["bytes"]["total"]
    return f"yes; {memory(left)} ({percent(left / whole, 0)}) to spare on the fullest device"


def _fullest(document: Document) -> str:
    device = _fullest_device(document)
    whole = room(device)
    of = "" if whole is None else f" of {memory(whole)}"
    stages = f"{noun(len(device['stages']), 'stage')} {ranges_label(device['stages'])}"
    return f"{memory(device['bytes']['total'])}{of}; {_name(device)} with {stages}"


def _name(device: Document) -> str:
    name, kind = one_line(device["name"]), one_line(device["type"])
    return name if name == kind else f"{name} ({kind})"


def _speed(document: Document) -> str:
    timing, run = document["timing"], document.get("run") or {}
    about = "" if timing.get("exact", True) else "about "
    over = timing.get("speedup")
    baseline = f"; {about}{factor(over)} {one_line(timing['speedup_over'])}" if over else ""
    planned, expected = timing["samples_per_second"], expected_throughput(document)
    if expected is None or _profiled(document):
        expected = (planned, planned)
    low, high = expected
    text = (about + rate(high) if low == high else f"{PLAIN.text(low)} to {rate(high)}") + baseline
    if (spent := run.get("seconds")) is not None:
        times = dict.fromkeys(duration(spent * planned / speed) for speed in (high, low))
        text += f"; {' to '.join(times)} for {plural(run['epochs'], 'epoch')}"
    return text


def expected_throughput(document: Document) -> tuple[float, float] | None:
    """Return the samples a second between which a run is to be expected; None in a plan of a version that did not say it."""
    sure = document.get("certainty") or {}
    low, high = sure.get("samples_per_second_low"), sure.get("samples_per_second_high")
    return None if low is None or high is None else (low, high)


def _source_of_times(document: Document) -> str:
    lines = (one_line(text) for text in document["assumptions"])
    clauses = (re.split("[,:] ", text.removeprefix(_TIMES))[0] for text in lines if text.startswith(_TIMES))
    return next(clauses, "unknown")


def _profiled(document: Document) -> bool:
    """Whether the times are a profile's; a data sheet gives a range alone."""
    return _source_of_times(document).startswith("measured")


def _staleness(document: Document) -> str:
    worst = max(document["stages"], key=lambda stage: stage["staleness"])
    if not worst["staleness"]:
        return "none; no gradient is late"
    known = f"; known to {' and '.join(plugins)}" if (plugins := document.get("delay_aware")) else ""
    return f"{plural(worst['staleness'], 'update')}; the gradients of stage {worst['index']}, the latest{known}"


def _change(document: Document) -> str:
    """Return the keys that the first warning which names any says to set, or else the first warning."""
    warnings = [one_line(text) for text in document["warnings"]]
    if not warnings:
        looked = document.get("other_uses")
        others = f"none of {plural(looked, 'other use')} of these devices is better; " if looked else ""
        return f"nothing; {others}plan --compare looks at other methods"
    found = [(place, action[1]) for place, text in enumerate(warnings, start=1) if (action := _ACTION.search(text))]
    place, text = found[0] if found else (1, warnings[0])
    return f"{text}; {f'warning {place} of {len(warnings)}' if len(warnings) > 1 else 'the warning'} says why"


def _certainty(document: Document) -> str:
    parts = [_source_of_times(document)]
    if found := expected_throughput(document):
        planned = document["timing"]["samples_per_second"]
        low, high = (planned / each for each in reversed(found))
        quiet = " on a quiet machine" if _profiled(document) else ""
        parts.append(f"such plans gave {low:.1f} to {high:.1f} times the speed that runs had{quiet}")
    return "; ".join(parts)
