"""A plan on a terminal: six answers, the tables that are short or asked for, and last, where a reader's eye is, the warnings.

The answers are whether it fits, how full it is, how fast, how stale, what to change, which is the first warning, and how sure all that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from petra_graph.compiler.plan import Comparison, Plan, PlannedDevice
from petra_graph.report.plan_tables import (
    comparison_answers,
    comparison_columns,
    comparison_notes,
    comparison_title,
    device_columns,
    notes_on_nodes,
    ranges_label,
    stage_columns,
    title_lines,
    totals,
)
from petra_graph.report.tables import is_short, pair_columns, paragraph, table_lines
from petra_graph.units import duration, factor, listed, memory, noun, one_line, percent, plain, plural, rate

ASSUMPTIONS_PAGE = "petra_graph/compiler/README.md#assumptions"


def plan_text(plan: Plan | Comparison, *, width: int, verbose: bool = False) -> str:
    """Write a plan, or plans side by side, for a terminal of this width.

    Of a plan, the tables of stages and devices are written where they are short; with `verbose` everything is.
    """
    lines = _plan_lines(plan, width, verbose) if isinstance(plan, Plan) else _comparison_lines(plan, width, verbose)
    return "".join(f"{line}\n" for line in lines)


def _plan_lines(plan: Plan, width: int, verbose: bool) -> Iterator[str]:
    yield one_line(plan.name)
    yield from _beside_words(answers(plan), width)
    yield ""
    for line in title_lines(plan):
        yield from paragraph(line, width)
    columns = stage_columns(plan, max(16, width // 4), brief=not verbose)
    if verbose or is_short(columns, width):
        yield from ("", "stages", *table_lines(columns, width))
        for text in notes_on_nodes(plan):
            yield from paragraph(text, width, "  ")
    columns = device_columns(plan, max(16, width // 5))
    if verbose or is_short(columns, width):
        yield from ("", "devices", *table_lines(columns, width))
    for title, pairs in totals(plan) if verbose else ():
        yield from ("", *table_lines(pair_columns(title, pairs), width))
    yield from _assumptions([*plan.notes, *plan.assumptions], width, verbose)
    if others := plan.warnings[1:]:
        yield from _section("other warnings", others, width, "! ")


def _comparison_lines(compared: Comparison, width: int, verbose: bool) -> Iterator[str]:
    yield comparison_title(compared)
    yield from _beside_words(comparison_answers(compared), width)
    yield from ("", *table_lines(comparison_columns(compared, brief=not verbose), width))
    yield from _section("notes", comparison_notes(compared), width)
    yield from _assumptions(compared.assumptions, width, verbose)


def _beside_words(lines: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    longest = max((len(word) for word, _ in lines), default=0)
    for word, text in lines:
        first, *others = paragraph(text, width, " " * (longest + 2))
        yield from (word.ljust(longest) + first[longest:], *others)


def _section(title: str, texts: Iterable[str], width: int, mark: str = "") -> Iterator[str]:
    yield from ("", title)
    for text in texts:
        yield from paragraph(text, width, f"  {mark}")


def _assumptions(said: Sequence[str], width: int, verbose: bool) -> Iterator[str]:
    if said and verbose:
        yield from _section("assumptions", said, width, "- ")
    elif said:
        yield from ("", *paragraph(f"{len(said)}: see --verbose, and {ASSUMPTIONS_PAGE}", width, "assumptions   "))


def answers(plan: Plan) -> list[tuple[str, str]]:
    """Return the six answers, each after its question in a word."""
    timing, run, sure = plan.timing, plan.run, plan.certainty
    # The fullest by its share where the memory of every device is known, else by its bytes.
    known = all(device.room for device in plan.devices)
    fullest = max(plan.devices, key=lambda device: device.bytes.total / ((device.room or 1) if known else 1))
    of = "" if fullest.room is None else f" of {memory(fullest.room)}"
    stages = f"{noun(len(fullest.stages), 'stage')} {ranges_label(fullest.stages)}"

    planned, about = timing.samples_per_second, "" if timing.exact else "about "
    low, high = sure.samples_per_second_low, sure.samples_per_second_high
    rates = sorted((planned / high, planned / low))
    quiet = " on a quiet machine" if sure.profiled else ""
    if sure.profiled:  # a data sheet gives a range alone
        low = high = planned
    speed = about + rate(high) if low == high else f"{plain(low)} to {rate(high)}"
    if timing.speedup is not None:
        speed += f"; {about}{factor(timing.speedup)} {one_line(timing.speedup_over or '')}"
    if run.seconds is not None:
        times = dict.fromkeys(duration(run.seconds * planned / each) for each in (high, low))
        speed += f"; {' to '.join(times)} for {plural(run.epochs, 'epoch')}"

    latest, late = max(plan.stages, key=lambda stage: stage.staleness), "none; no gradient is late"
    if latest.staleness:
        late = f"{plural(latest.staleness, 'update')}; the gradients of stage {latest.index}, the latest"
    return [
        ("fits", _fit(plan, fullest)),
        ("fullest", f"{memory(fullest.bytes.total)}{of}; {_name(fullest)} with {stages}"),
        ("speed", speed),
        ("staleness", late),
        ("change", plan.warnings[0] if plan.warnings else "nothing; plan --compare looks at other methods"),
        (
            "how sure",
            f"{sure.times}; such plans gave {rates[0]:.1f} to {rates[1]:.1f} times the speed that runs had{quiet}",
        ),
    ]


def _fit(plan: Plan, fullest: PlannedDevice) -> str:
    short = [device for device in plan.devices if (device.spare_bytes or 0) < 0]
    if short:
        most = min(short, key=lambda device: device.spare_bytes or 0)
        others = f"; {plural(len(short) - 1, 'other device')} too" if len(short) > 1 else ""
        lacks = memory(-(most.spare_bytes or 0))
        return f"no; {_name(most)} needs {lacks} more than its {memory(most.room or 0)}{others}"
    unknown = dict.fromkeys(one_line(device.type) for device in plan.devices if not device.room)
    if unknown or not fullest.room:
        return f"unknown; the memory of {listed(unknown)} is not stated: set partition.memory"
    left = fullest.room - fullest.bytes.total
    return f"yes; {memory(left)} ({percent(left / fullest.room, 0)}) to spare on the fullest device"


def _name(device: PlannedDevice) -> str:
    name, kind = one_line(device.name), one_line(device.type)
    return name if name == kind else f"{name} ({kind})"
