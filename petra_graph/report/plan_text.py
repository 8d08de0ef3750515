"""A plan, or plans side by side, in words: six answers, tables, notes and warnings, which a terminal and a page show alike.

The answers are whether it fits, how full it is, how fast, how stale, what to change, which is the first warning, and how sure all that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from attrs import frozen

from petra_graph import units
from petra_graph.compiler.memory import PARTS, StageBytes
from petra_graph.compiler.plan import ComparedPlan, Comparison, Plan, PlannedDevice
from petra_graph.program.schedule import schedule_text
from petra_graph.report.tables import Column, name_column, paragraph, table_lines, value_column
from petra_graph.units import factor, memory, noun, number, one_line, percent, plural, rate, seconds

ASSUMPTIONS_PAGE = "petra_graph/compiler/README.md#assumptions"
PART_NAMES: Mapping[str, str] = {
    part: {"graphs": "kept graphs", "working": "working set"}.get(part, part.replace("_", " ")) for part in PARTS
}
"""The purposes of a stage's memory, as every view names them."""
_BRIEF = {"stage", "nodes", "device", "depth", "stale\nupdates", "forward", "backward", "memory\ntotal"}
"""The columns of stages that fit a terminal."""


@frozen(kw_only=True)
class PlanInWords:
    title: str
    answers: Sequence[tuple[str, str]]
    tables: Sequence[tuple[str, Sequence[Column]]]
    notes: Sequence[str]
    assumptions: Sequence[str]
    about: Sequence[str] = ()
    warnings: Sequence[str] = ()  # beside the first one, which is an answer


def plan_text(plan: Plan | Comparison, *, verbose: bool = False) -> str:
    """Write a plan, or plans side by side, for a terminal; last, where a reader's eye is, the warnings."""
    said = plan_in_words(plan, brief=not verbose)
    lines, longest = [one_line(said.title)], max((len(word) for word, _ in said.answers), default=0)
    for word, text in said.answers:
        lines += paragraph(text, word.ljust(longest + 2))
    lines += [""] * bool(said.about) + [line for text in said.about for line in paragraph(text)]
    for title, columns in said.tables:
        lines += ["", title, *table_lines(columns)]
    assumed = (
        said.assumptions if verbose else [f"{len(said.assumptions)}, which --verbose lists; see {ASSUMPTIONS_PAGE}"]
    )
    for title, texts in (("notes", said.notes), ("assumptions", assumed), ("other warnings", said.warnings)):
        lines += ["", title] * bool(texts) + [line for text in texts for line in paragraph(text, "  - ")]
    return "\n".join(lines)


def plan_in_words(plan: Plan | Comparison, *, brief: bool = False) -> PlanInWords:
    """Return what is said of a plan, or of plans side by side; the tables of a brief one fit a terminal."""
    if isinstance(plan, Comparison):
        return _compared(plan)
    kinds, types = Counter(node.kind for node in plan.nodes), Counter(one_line(one.type) for one in plan.devices)
    of_kinds = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("reversible", "buffered", "head") if kinds[kind])
    devices = ", ".join(types) if len(types) == 1 else units.listed(f"{many} {kind}" for kind, many in types.items())
    about = [
        f"{plural(len(plan.nodes), 'node')} ({of_kinds}), {units.count(plan.totals.parameters)} parameters",
        f"{plan.method}, schedule {schedule_text(plan.schedule)}, accumulation {plan.accumulation}, "
        f"micro-batch {plan.micro_batch}, {plan.samples_per_update:,} samples an update: "
        f"{plural(len(plan.stages), 'stage')} on {plural(len(plan.devices), 'device')} ({devices})"
        + (f" in each of {plan.replicas} replicas" if plan.replicas > 1 else ""),
    ]
    # What nodes keep for their backwards, where nodes of one kind keep different things.
    kept = dict.fromkeys((node.kind, node.keeps) for node in plan.nodes if node.keeps)
    ways = dict.fromkeys(keeps for _, keeps in kept) if len(kept) > len({kind for kind, _ in kept}) else ()
    tables = [("stages", stage_columns(plan, brief=brief)), ("devices", device_columns(plan))]
    return PlanInWords(
        title=plan.name,
        answers=answers(plan),
        about=about,
        tables=tables if brief else [*tables, ("totals", _totals(plan))],
        notes=[f"kept {way}: {nodes_label(one.name for one in plan.nodes if one.keeps == way)}" for way in ways],
        assumptions=[*plan.notes, *plan.assumptions],
        warnings=plan.warnings[1:],
    )


def nodes_label(names: Iterable[str]) -> str:
    """Name nodes in order, consecutive copies of a repeated node together: stem, down1, layer1.0-2."""
    runs = list[list[str]]()
    for name in names:
        base, _, copy = name.rpartition(".")
        if runs and copy.isdecimal() and runs[-1][-1] == f"{base}.{int(copy) - 1}":
            runs[-1].append(name)
        else:
            runs.append([name])
    return one_line(", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1].rpartition('.')[2]}" for run in runs))


def ranges_label(numbers: Iterable[int]) -> str:
    """Name whole numbers, consecutive ones together: 1-4, 7."""
    runs = [[one for _, one in run] for _, run in groupby(enumerate(sorted(numbers)), lambda item: item[1] - item[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def row_name(row: ComparedPlan, first: ComparedPlan) -> str:
    """Name a row of a comparison: a method, and where it uses devices otherwise than the first row, how."""
    if row.name is not None:
        return row.name
    keep = "" if row.keep is None else "keep auto" if row.keep == "auto" else "keep as listed"
    schedule = "" if row.schedule in (None, "sequential") else schedule_text(row.schedule)
    used, uses = row.devices or 1, ""
    if row.replicas != first.replicas and (row.replicas or 1) > 1:
        uses = f"{row.replicas} replicas" + (f" of {used} devices" if used > 1 else "")
    elif used != first.devices:
        uses = f"on {used} {noun(used, 'device')}"
    elif 'partition.stages = "auto"' in row.set:
        uses = "stages auto"
    return ", ".join(filter(None, (row.method, schedule, keep, uses)))


def answers(plan: Plan) -> list[tuple[str, str]]:
    """Return the six answers to what is asked of a plan."""
    timing, run = plan.timing, plan.run

    def name(device: PlannedDevice) -> str:
        own, kind = one_line(device.name), one_line(device.type)
        return own if own == kind else f"{own} ({kind})"

    # By its share of what it may hold; one of which that is unknown comes first, by its bytes.
    fullest = max(plan.devices, key=lambda device: device.bytes.total / (device.room or 1))
    shortest = min(plan.devices, key=lambda device: device.spare_bytes or 0)
    of = "" if fullest.room is None else f" of {memory(fullest.room)}"
    stages = f"{noun(len(fullest.stages), 'stage')} {ranges_label(fullest.stages)}"
    unknown = dict.fromkeys(one_line(device.type) for device in plan.devices if not device.room)
    if (lacks := -(shortest.spare_bytes or 0)) > 0:
        fits = f"no; {name(shortest)} needs {memory(lacks)} more than its {memory(shortest.room or 0)}"
    elif unknown or not fullest.room:
        fits = f"unknown; the memory of {units.listed(unknown)} is not stated: set partition.memory"
    else:
        left = fullest.room - fullest.bytes.total
        fits = f"yes; {memory(left)} ({percent(left / fullest.room, 0)}) to spare on the fullest device"

    about = "" if timing.exact else "about "
    speed = about + rate(timing.samples_per_second)
    if timing.speedup is not None:
        speed += f"; {about}{factor(timing.speedup)} {one_line(timing.speedup_over or '')}"
    if run.seconds is not None:
        speed += f"; {units.duration(run.seconds)} for {plural(run.epochs, 'epoch')}"

    latest, late = max(plan.stages, key=lambda stage: stage.staleness), "none; no gradient is late"
    if latest.staleness:
        late = f"{plural(latest.staleness, 'update')}; the gradients of stage {latest.index}, the latest"
    return [
        ("fits", fits),
        ("fullest", f"{memory(fullest.bytes.total)}{of}; {name(fullest)} with {stages}"),
        ("speed", speed),
        ("staleness", late),
        ("change", plan.warnings[0] if plan.warnings else "nothing; plan --compare looks at other methods"),
        ("how sure", one_line(plan.certainty)),
    ]


def stage_columns(plan: Plan, *, brief: bool = False) -> list[Column]:
    """Return a stage's nodes and device, its depth and staleness, its seconds and its memory; unless `brief`, all that is planned of it."""
    stages = plan.stages
    columns = [
        value_column("stage", (stage.index for stage in stages)),
        name_column("nodes", (nodes_label(stage.nodes) for stage in stages), 20 if brief else 60),
        name_column("kind", (stage.kind for stage in stages), 16),
        name_column("device", (stage.device for stage in stages), 18),
        value_column("depth", (stage.depth for stage in stages)),
        value_column("stale\nupdates", (stage.staleness for stage in stages), number),
        value_column("parameters", (stage.parameters for stage in stages), units.count),
        value_column("forward", (stage.seconds.forward for stage in stages), seconds),
        value_column("backward", (stage.seconds.backward for stage in stages), seconds),
    ]
    held = parts_held(stage.bytes for stage in stages)
    columns += [value_column(PART_NAMES[part].replace(" ", "\n"), values, memory) for part, values in held.items()]
    columns.append(value_column("memory\ntotal", (stage.bytes.total for stage in stages), memory))
    return [one for one in columns if not brief or one.head in _BRIEF]


def parts_held(counts: Iterable[StageBytes]) -> dict[str, list[int]]:
    """Return the bytes of several stages or devices by part; a part that none of them has is left out."""
    counts = list(counts)
    held = {part: [getattr(count, part) for count in counts] for part in PARTS}
    return {part: values for part, values in held.items() if any(values)}


def device_columns(plan: Plan) -> list[Column]:
    """Return a device's work and its memory, and its share of what the device may hold."""
    devices = plan.devices
    waiting = [device.exchange_seconds_per_tick for device in devices]
    shares = [one.room and f"{percent(one.bytes.total / one.room)} of {memory(one.room)}" for one in devices]
    return [
        name_column("device", (device.name for device in devices), 18),
        name_column("type", (device.type for device in devices), 16),
        name_column("stages", (ranges_label(device.stages) for device in devices), 16),
        value_column("busy\na tick", (device.busy_seconds_per_tick for device in devices), seconds),
        value_column("busy", (device.utilisation for device in devices), percent),
        *([value_column("all-reduce\na tick", waiting, seconds)] if any(waiting) else []),
        value_column("memory\nused", (device.bytes.total for device in devices), memory),
        *([value_column("of what it\nmay hold", shares)] if any(shares) else []),
    ]


def _totals(plan: Plan) -> list[Column]:
    """Return the simulation's tick, and the memory of all stages beside what the paper's Table 3 counts."""
    timing, about = plan.timing, "" if plan.timing.exact else "about "
    pairs = {
        "tick": about + seconds(timing.tick_seconds),
        "bubble": about + percent(timing.bubble_fraction),
        "memory of all stages": memory(plan.totals.bytes.total),
    }
    for key, size in plan.paper_accounting.items():
        pairs[f"by the paper's count, {key.replace('_', ' ')}"] = memory(size)
    return [name_column("of the pipeline", pairs), Column("", [*pairs.values()])]


def _compared(plan: Comparison) -> PlanInWords:
    """Return how many plans fit, which method to choose, and the figures of each; of a plan that does not exist they are dashes, and its note says why."""
    rows, answered = plan.rows, list[tuple[str, str]]()
    names = [row_name(row, rows[0]) for row in rows]
    fit = [row.fits for row in rows if row.fits is not None]
    if fit:
        but = "; the notes say why the others do not" * (sum(fit) < len(rows))
        answered.append(("fits", f"{sum(fit)} of {len(rows)}{but}"))
    if plan.recommended is not None:
        chosen = rows[plan.recommended]
        speed = factor(chosen.speedup) if chosen.speedup else rate(chosen.samples_per_second or 0.0)
        late = f"{plural(chosen.staleness, 'update')} stale" if chosen.staleness else "no gradient is late"
        full = f"{memory(chosen.memory_peak or 0)} on the fullest device"
        answered.append(("choose", "; ".join([names[plan.recommended], speed, late, full])))
        answered.append(("set", "; ".join(chosen.set) or "nothing: it is what the spec says"))
    answer: Mapping[bool, str] = {True: "yes", False: "no"}
    speed_column = value_column("samples\na second", (row.samples_per_second for row in rows), units.plain)
    if any(row.speedup for row in rows):
        speed_column = value_column("speed-up", (row.speedup for row in rows), factor)
    columns = [
        name_column("plan", names),
        value_column("fullest\ndevice", (row.memory_peak for row in rows), memory),
        *([] if all(fit) else [value_column("fits", (row.fits for row in rows), answer.__getitem__)]),
        speed_column,
        value_column("stale\nupdates", (row.staleness for row in rows), number),
    ]
    notes = [f"{name}: {row.note}" for name, row in zip(names, rows, strict=True) if row.note]
    return PlanInWords(
        title=f"{plan.name}: plans compared",
        answers=answered,
        tables=[("plans", columns)],
        notes=[*notes, f"speed-ups are over {plan.speedup_over}"],
        assumptions=plan.assumptions,
    )
