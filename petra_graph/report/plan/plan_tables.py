"""The title, the totals and the columns of tables that the views for people, on terminals and pages, share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from petra_graph import units
from petra_graph.program.plan_document import Document
from petra_graph.program.stage_bytes import PARTS
from petra_graph.report.plan.short_labels import nodes_label, ranges_label, schedule_label
from petra_graph.report.text_tables import Column, bar, direction_columns, name_column, number_column, text_column

Pairs = list[tuple[str, str]]
"""Names and values."""

_NAMES = {"graphs": "kept graphs", "working": "working set"}
PART_NAMES: Mapping[str, str] = {part: _NAMES.get(part, part.replace("_", " ")) for part in PARTS}
"""The purposes of a stage's memory, as every view names them."""
_KIND_STYLES = {"reversible": "green", "buffered": "yellow", "head": "cyan"}
_BAR_STYLES = {False: "blue", True: "bold red"}
_OF_THE_TICK = {"throughput", "speed-up over one device", "tick", "bubble"}
"""The times that follow from the steady state, which a simulation may not have reached."""
_DELAYS = 12
"""Stages whose delays a line lists."""
_BRIEF = ("stage", "nodes", "device", "depth", "order", "stale\nupdates", "forward", "backward", "memory\ntotal")
"""Heads of the columns that a brief table of stages has."""
_KIND_WIDTH, _TYPE_WIDTH, _RANGES_WIDTH, _DEVICE_WIDTH = 16, 16, 16, 18


def stage_columns(document: Document, node_width: int) -> list[Column]:
    """Return a stage's nodes and device, its work, the bytes that it sends, and the bytes that it holds."""
    stages = document["stages"]
    kinds = [stage["kind"] for stage in stages]
    totals = [stage["bytes"]["total"] for stage in stages]
    unit = units.BINARY.column(totals)
    return [
        text_column("stage", (stage["index"] for stage in stages)),
        name_column("nodes", (nodes_label(stage["nodes"]) for stage in stages), node_width),
        name_column("kind", kinds, _KIND_WIDTH, "place", [_KIND_STYLES.get(kind, "") for kind in kinds]),
        name_column("device", (stage["device"] for stage in stages), _DEVICE_WIDTH, "place"),
        text_column("depth", (stage["depth"] for stage in stages), "place"),
        text_column("stale\nupdates", (stage["staleness"] for stage in stages), "place", units.number),
        number_column("parameters", units.COUNT_WORDS, [stage["parameters"] for stage in stages], "place"),
        *direction_columns("{}", units.SECONDS, [stage["seconds"] for stage in stages], "work"),
        *direction_columns("{}", units.FLOPS, [stage["flops"] for stage in stages], "flops"),
        *direction_columns("sent\n{}", units.BINARY, [stage["channel_bytes"] for stage in stages], "sent"),
        *(
            number_column(PART_NAMES[part].replace(" ", "\n"), units.BINARY, values, "memory", unit)
            for part, values in parts_held(stage["bytes"] for stage in stages).items()
        ),
        number_column("memory\ntotal", units.BINARY, totals, "memory", unit),
    ]


def brief_stage_columns(document: Document, node_width: int) -> list[Column]:
    """Return a stage's nodes and device, its depth and staleness, its seconds and its memory."""
    columns = stage_columns(document, node_width)
    return [column for column in columns if column.head.startswith(_BRIEF) and column.group != "flops"]


def parts_held(counts: Iterable[Mapping[str, int]]) -> dict[str, list[int]]:
    """Return the bytes of several stages or devices by part; a part that none of them has is left out."""
    counts = list(counts)
    held = {part: [count.get(part, 0) for count in counts] for part in PARTS}
    return {part: values for part, values in held.items() if any(values)}


def device_columns(document: Document, name_width: int, bar_cells: int) -> list[Column]:
    """Return a device's work and its memory, with a bar: of its limit, or of the fullest device's memory.

    Args:
        name_width: longer names are cut.
        bar_cells: length of the bars, in characters; 0: no bars.
    """
    devices = document["devices"]
    used = [device["bytes"]["total"] for device in devices]
    limits = [device["memory_bytes"] for device in devices]
    over = [limit is not None and use > limit for use, limit in zip(used, limits, strict=True)]
    columns = [
        name_column("device", (device["name"] for device in devices), name_width),
        name_column("type", (device["type"] for device in devices), _TYPE_WIDTH, "work"),
        name_column("stages", (ranges_label(device["stages"]) for device in devices), _RANGES_WIDTH, "work"),
        number_column("busy\na tick", units.SECONDS, [device["busy_seconds_per_tick"] for device in devices], "work"),
        text_column("busy", (device["utilisation"] for device in devices), "work", units.percent),
    ]
    waiting = [device.get("exchange_seconds_per_tick", 0.0) for device in devices]
    if any(waiting):
        columns.append(number_column("all-reduce\na tick", units.SECONDS, waiting, "work"))
    if bar_cells:
        bars = [bar(use / (limit or max(used) or 1), bar_cells) for use, limit in zip(used, limits, strict=True)]
        columns.append(name_column("memory", bars, bar_cells, "memory", [_BAR_STYLES[full] for full in over]))
    columns.append(number_column("used", units.BINARY, used, "memory"))
    capacities = [device.get("capacity_bytes") for device in devices]
    if any(capacities):
        shares = [
            "-" if not most else f"{units.percent(use / most)} of {units.memory(most)}"
            for use, most in zip(used, capacities, strict=True)
        ]
        columns.append(text_column("of capacity", shares, "memory"))
    if any(limit is not None for limit in limits):
        texts = ["none" if limit is None else units.memory(limit) for limit in limits]
        marks = [f"{text}, too little" if full else text for text, full in zip(texts, over, strict=True)]
        columns.append(text_column("limit", marks, "memory"))
    return columns


def title_lines(document: Document) -> tuple[str, str]:
    """Return a line on the network, and a line on its training."""
    kinds = Counter(node["kind"] for node in document["nodes"])
    totals = document["totals"]
    parameters, trained = totals["parameters"], totals.get("trained", totals["parameters"])
    of_kinds = ", ".join(f"{kinds[kind]:,} {kind}" for kind in ("reversible", "buffered", "head") if kinds[kind])
    network = (
        f"{units.one_line(document['name'])}: {units.plural(len(document['nodes']), 'node')} ({of_kinds}), "
        f"{units.count(parameters)} parameters"
        + (f", {units.count(trained)} of them trained" if trained < parameters else "")
    )
    samples = document.get("samples_per_update")
    update = "" if samples is None else f", {samples:,} samples an update"
    training = (
        f"{document['method']}, schedule {schedule_label(document['schedule'])}, accumulation "
        f"{document['accumulation']}, micro-batch {document['micro_batch']}{update}: "
        f"{units.plural(len(document['stages']), 'stage')} on {units.plural(len(document['devices']), 'device')}"
    )
    if document.get("replicas", 1) > 1:
        every = units.plural(document["replicas"] * len(document["devices"]), "device")
        training += f" in each of {document['replicas']} replicas, {every} in all"
    return network, training


def delay_line(document: Document) -> str:
    """Return which plugins know the delay of their stage, and that delay in each stage; "" if none does."""
    if not (plugins := document.get("delay_aware")):
        return ""
    late = (units.number(stage["staleness"]) for stage in document["stages"])
    know = "knows the delay of its" if len(plugins) == 1 else "know the delay of their"
    who = " and ".join(plugins)
    return f"{who} {know} stage, in updates while the pipeline is full: {units.listed(late, _DELAYS)}"


def keeps_line(document: Document) -> str:
    """Return what single nodes keep for their backwards; "" if all nodes of a kind keep the same."""
    nodes = [node for node in document["nodes"] if node.get("keeps")]
    if len({(node["kind"], node["keeps"]) for node in nodes}) == len({node["kind"] for node in nodes}):
        return ""
    ways = {keeps: [node["name"] for node in nodes if node["keeps"] == keeps] for keeps in (n["keeps"] for n in nodes)}
    return f"nodes keep {'; '.join(f'{keeps}: {nodes_label(names)}' for keeps, names in ways.items())}"


def totals(document: Document) -> list[tuple[str, Pairs]]:
    """Return the memory of all stages by part, the memory as the paper's Table 3 counts it, and the simulation's times.

    Each has a title, which names the unit where all values share one. The last row of memory is the total.
    """
    counts, timing = document["totals"]["bytes"], document["timing"]
    unit, busy = units.BINARY.column([counts["total"]]), timing["utilisation"]
    memory = [(name, counts.get(part, 0)) for part, name in PART_NAMES.items() if part != "graphs" or counts.get(part)]
    memory.append(("total", counts["total"]))
    paper = ((key, document["paper_accounting"][key]) for key in ("model", "input_buffer", "parameter_buffer", "total"))
    share = ", ".join(map(units.percent, (min(busy), max(busy)))) if busy else "unknown"
    about = "" if timing.get("exact", True) else "about "
    times = [
        *((name, about * (name in _OF_THE_TICK) + write(value)) for name, value, write in timing_values(timing)),
        ("devices busy, least, most", share),
        *_run_values(document),
    ]
    return [
        (f"memory, all stages, {unit.name}", [(name, unit.digits(value)) for name, value in memory]),
        ("paper's accounting, GB", [(key.replace("_", " "), units.paper_memory(value)) for key, value in paper]),
        ("time", times),
    ]


def _run_values(document: Document) -> Pairs:
    """Return what an epoch and the run take, without evaluations; nothing where a plan was saved before they were in it."""
    run = document.get("run")
    if run is None:
        return []
    count, about = run["micro_batches_per_epoch"], "" if document["timing"].get("exact", True) else "about "
    of = "" if count is None else f" of {count:,} micro-batch{'es' * (count != 1)}"
    pairs = (
        (f"an epoch{of}", run["epoch_seconds"]),
        (f"training of {units.plural(run['epochs'], 'epoch')}", run["seconds"]),
    )
    return [(name, "unknown" if value is None else about + units.duration(value)) for name, value in pairs]


def timing_values(timing: Document) -> list[tuple[str, float, Callable[[float], str]]]:
    """Return the simulation's times, each with its name and with the function that writes it."""
    exposed = timing.get("exposed_communication", {})
    return [
        ("throughput", timing["samples_per_second"], units.rate),
        ("speed-up over one device", timing["speedup_over_reversible_backprop"], units.factor),
        ("tick", timing["tick_seconds"], units.seconds),
        ("bubble", timing["bubble_fraction"], units.percent),
        ("exposed all-reduce", exposed.get("all_reduce", 0.0), units.percent),
        ("exposed messages", exposed.get("links", 0.0), units.percent),
        ("to fill the pipeline", timing["fill_seconds"], units.seconds),
        ("to drain it", timing["drain_seconds"], units.seconds),
    ]
