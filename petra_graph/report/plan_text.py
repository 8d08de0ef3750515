"""A plan, or plans side by side, as answers, tables and notes, which pages show as well; and how a terminal shows them.

A terminal has six answers, the tables that are short or asked for, and last, where a reader's eye is, the warnings. The answers are whether it
fits, how full it is, how fast, how stale, what to change, which is the first warning, and how sure all that is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from attrs import asdict

from petra_graph import units
from petra_graph.compiler.memory import PARTS, StageBytes
from petra_graph.compiler.plan import ComparedPlan, Comparison, Plan, PlannedDevice
from petra_graph.program.schedule import schedule_text
from petra_graph.report.tables import Column, is_short, name_column, pair_columns, paragraph, table_lines, value_column
from petra_graph.units import factor, memory, noun, number, one_line, percent, plural, rate, seconds

ASSUMPTIONS_PAGE = "petra_graph/compiler/README.md#assumptions"
PART_NAMES: Mapping[str, str] = {
    part: {"graphs": "kept graphs", "working": "working set"}.get(part, part.replace("_", " ")) for part in PARTS
}
"""The purposes of a stage's memory, as every view names them."""
_COPY = re.compile(r"(.+)\.(0|[1-9][0-9]*)", re.DOTALL)


# --- names ---


def nodes_label(names: Iterable[str]) -> str:
    """Name nodes in order, consecutive copies of a repeated node together: stem, down1, layer1.0-2."""

    def same_run(item: tuple[int, str]) -> tuple[str, int | None]:
        # Copies that follow one another are as far from their places as the first one.
        place, name = item
        copy = _COPY.fullmatch(name)
        return (name, None) if copy is None else (copy[1], int(copy[2]) - place)

    runs = [[name for _, name in run] for _, run in groupby(enumerate(names), same_run)]
    return one_line(", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1].rpartition('.')[2]}" for run in runs))


def ranges_label(numbers: Iterable[int]) -> str:
    """Name whole numbers, consecutive ones together: 1-4, 7."""
    runs = [[one for _, one in run] for _, run in groupby(enumerate(sorted(numbers)), lambda item: item[1] - item[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


# --- a plan ---


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
    speed = about + rate(high) if low == high else f"{units.plain(low)} to {rate(high)}"
    if timing.speedup is not None:
        speed += f"; {about}{factor(timing.speedup)} {one_line(timing.speedup_over or '')}"
    if run.seconds is not None:
        times = dict.fromkeys(units.duration(run.seconds * planned / each) for each in (high, low))
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
        return f"unknown; the memory of {units.listed(unknown)} is not stated: set partition.memory"
    left = fullest.room - fullest.bytes.total
    return f"yes; {memory(left)} ({percent(left / fullest.room, 0)}) to spare on the fullest device"


def _name(device: PlannedDevice) -> str:
    name, kind = one_line(device.name), one_line(device.type)
    return name if name == kind else f"{name} ({kind})"


def title_lines(plan: Plan) -> tuple[str, str]:
    """Return a line on the network, and a line on its training."""
    kinds = Counter(node.kind for node in plan.nodes)
    parameters, trained = plan.totals.parameters, plan.totals.trained
    of_kinds = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("reversible", "buffered", "head") if kinds[kind])
    network = f"{plural(len(plan.nodes), 'node')} ({of_kinds}), {units.count(parameters)} parameters"
    if trained < parameters:
        network += f", {units.count(trained)} of them trained"
    types = Counter(one_line(device.type) for device in plan.devices)
    devices = ", ".join(types) if len(types) == 1 else units.listed(f"{many} {one}" for one, many in types.items())
    training = (
        f"{plan.method}, schedule {schedule_text(plan.schedule)}, accumulation {plan.accumulation}, "
        f"micro-batch {plan.micro_batch}, {plan.samples_per_update:,} samples an update: "
        f"{plural(len(plan.stages), 'stage')} on {plural(len(plan.devices), 'device')} ({devices})"
    )
    if plan.replicas > 1:
        every = plural(plan.replicas * len(plan.devices), "device")
        training += f" in each of {plan.replicas} replicas, {every} in all"
    return network, training


def notes_on_nodes(plan: Plan) -> list[str]:
    """Return what nodes keep for their backwards, where nodes of one kind keep different things."""
    nodes = [node for node in plan.nodes if node.keeps]
    if len({(node.kind, node.keeps) for node in nodes}) == len({node.kind for node in nodes}):
        return []
    ways = {str(node.keeps): nodes_label(one.name for one in nodes if one.keeps == node.keeps) for node in nodes}
    return [f"nodes keep {'; '.join(f'{keeps}: {names}' for keeps, names in ways.items())}"]


_BRIEF = {"stage", "nodes", "device", "depth", "stale\nupdates", "forward", "backward", "memory\ntotal"}
"""The columns of stages that fit a terminal."""


def stage_columns(plan: Plan, width: int = 60, *, brief: bool = False) -> list[Column]:
    """Return a stage's nodes, of at most this width, and device, its depth and staleness, its seconds and its memory.

    Unless `brief`, also its work, its messages and the parts of its memory.
    """
    stages = plan.stages
    columns = [
        value_column("stage", (stage.index for stage in stages)),
        name_column("nodes", (nodes_label(stage.nodes) for stage in stages), width),
        name_column("kind", (stage.kind for stage in stages), 16),
        name_column("device", (stage.device for stage in stages), 18),
        value_column("depth", (stage.depth for stage in stages)),
        value_column("stale\nupdates", (stage.staleness for stage in stages), number),
        value_column("parameters", (stage.parameters for stage in stages), units.count),
        value_column("forward", (stage.seconds.forward for stage in stages), seconds),
        value_column("backward", (stage.seconds.backward for stage in stages), seconds),
        value_column("forward\nwork", (stage.flops.forward for stage in stages), units.flops),
        value_column("backward\nwork", (stage.flops.backward for stage in stages), units.flops),
        value_column("sent\nforward", (stage.channel_bytes.forward for stage in stages), memory),
        value_column("sent\nbackward", (stage.channel_bytes.backward for stage in stages), memory),
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


def device_columns(plan: Plan, width: int = 60) -> list[Column]:
    """Return a device's work and its memory, and its share of what the device may hold."""
    devices = plan.devices
    waiting = [device.exchange_seconds_per_tick for device in devices]
    shares = [one.room and f"{percent(one.bytes.total / one.room)} of {memory(one.room)}" for one in devices]
    return [
        name_column("device", (device.name for device in devices), width),
        name_column("type", (device.type for device in devices), 16),
        name_column("stages", (ranges_label(device.stages) for device in devices), 16),
        value_column("busy\na tick", (device.busy_seconds_per_tick for device in devices), seconds),
        value_column("busy", (device.utilisation for device in devices), percent),
        *([value_column("all-reduce\na tick", waiting, seconds)] if any(waiting) else []),
        value_column("memory\nused", (device.bytes.total for device in devices), memory),
        *([value_column("of what it\nmay hold", shares)] if any(shares) else []),
    ]


def totals(plan: Plan) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the memory of all stages by part, the memory as the paper's Table 3 counts it, and the simulation's times, each with a title."""
    timing, run, busy = plan.timing, plan.run, [device.utilisation for device in plan.devices]
    many, about = run.micro_batches_per_epoch, "" if timing.exact else "about "
    of = "" if many is None else f" of {many:,} {noun(many, 'micro-batch', 'es')}"
    times = [
        ("throughput", about + rate(timing.samples_per_second)),
        ("tick", about + seconds(timing.tick_seconds)),
        ("bubble", about + percent(timing.bubble_fraction)),
        ("exposed all-reduce", percent(timing.exposed_communication.all_reduce)),
        ("exposed messages", percent(timing.exposed_communication.links)),
        ("to fill the pipeline", seconds(timing.fill_seconds)),
        ("to drain it", seconds(timing.drain_seconds)),
        ("devices busy, least, most", f"{percent(min(busy))}, {percent(max(busy))}"),
        (f"an epoch{of}", "unknown" if run.epoch_seconds is None else about + units.duration(run.epoch_seconds)),
    ]
    held, paper = asdict(plan.totals.bytes), plan.paper_accounting
    return [
        ("memory, all stages", [(PART_NAMES.get(part, part), memory(held[part])) for part in held if held[part]]),
        ("paper's accounting", [(key.replace("_", " "), f"{value / 1e9:,.2f} GB") for key, value in paper.items()]),
        ("time", times),
    ]


# --- plans side by side; what does not apply, or belongs to a plan that does not exist, is None and a dash, and the row's note says why ---


def _of_methods(compared: Comparison) -> bool:
    """Whether these are methods, and other uses of the devices, of one specification, and no given specifications."""
    return compared.rows[0].name is None


def comparison_title(compared: Comparison) -> str:
    return f"{one_line(compared.name)}: {'methods' if _of_methods(compared) else 'plans'} compared"


def row_name(row: ComparedPlan, first: ComparedPlan) -> str:
    """Name a row: a method, and where it uses devices otherwise than the first row, how."""
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


def comparison_columns(compared: Comparison, *, brief: bool = False) -> list[Column]:
    """Return the figures of each plan; where `brief`, speed is a speed-up alone where there is one."""
    rows = compared.rows
    names = [row_name(row, rows[0]) for row in rows]
    columns = [
        name_column("method, schedule" if _of_methods(compared) else "plan", names),
        value_column("fullest\ndevice", (row.memory_peak for row in rows), memory),
        value_column("speed-up", (row.speedup for row in rows), factor),
        value_column("stale\nupdates", (row.staleness for row in rows), number),
    ]
    if any(row.fits is False for row in rows):
        columns.insert(2, value_column("fits", (row.fits for row in rows), {True: "yes", False: "no"}.__getitem__))
    if not brief or not any(row.speedup for row in rows):
        columns.append(value_column("samples\na second", (row.samples_per_second for row in rows), units.plain))
    if not brief:
        columns.append(value_column("memory\ntotal", (row.memory_total for row in rows), memory))
    return columns


def comparison_answers(compared: Comparison) -> list[tuple[str, str]]:
    """Return which plan is the fastest, which the smallest, and of methods how many fit and which to choose."""
    rows, found = compared.rows, list[tuple[str, str]]()
    fits = [row.fits for row in rows]
    if any(fit is not None for fit in fits):
        more = "" if all(fits) else "; the notes say why the others do not"
        found.append(("fits", f"{fits.count(True)} of {len(fits)}{more}"))

    def speed(row: ComparedPlan) -> str:
        return factor(row.speedup) if row.speedup else rate(row.samples_per_second or 0.0)

    def fullest(row: ComparedPlan) -> str:
        return f"{memory(row.memory_peak or 0)} on the fullest device"

    if usable := [row for row in rows if row.figures]:
        fastest = max(usable, key=lambda row: row.samples_per_second or 0.0)
        smallest = min(usable, key=lambda row: row.memory_peak or 0)
        found.append(("fastest", f"{speed(fastest)}; {row_name(fastest, rows[0])}"))
        found.append(("smallest", f"{fullest(smallest)}; {row_name(smallest, rows[0])}"))
    if compared.recommended is not None:
        chosen = rows[compared.recommended]
        late = f"{plural(chosen.staleness, 'update')} stale" if chosen.staleness else "no gradient is late"
        reasons = [row_name(chosen, rows[0]), speed(chosen), late, fullest(chosen)]
        found.append(("choose", "; ".join(reasons)))
        found.append(("set", "; ".join(chosen.set) or "nothing: it is what the spec says"))
    return found


def comparison_notes(compared: Comparison) -> list[str]:
    """Return what is to be said of single rows, and of the speed-ups."""
    notes = [f"{row_name(row, compared.rows[0])}: {row.note}" for row in compared.rows if row.note]
    return [*notes, f"speed-ups are over {compared.speedup_over}"]


# --- on a terminal ---


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
