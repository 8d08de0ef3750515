"""The tables of stages and of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from petra_graph.report.plan.document import PARTS, Document, parts_of
from petra_graph.report.plan.labels import nodes_label, ranges_label
from petra_graph.report.plan.tables import Field, bar, numbers_field, packed, rows_shown, words_field
from petra_graph.report.plan.units import (
    BINARY,
    COUNT_WORDS,
    FLOPS,
    SECONDS,
    column_of,
    memory,
    number,
    percent,
)

KIND_STYLES = {"reversible": "green", "buffered": "yellow", "head": "cyan"}
_BAR_STYLES = {False: "blue", True: "bold red"}


def stage_tables(document: Document, width: int, whole: bool) -> Iterator[Table]:
    """Return the stages' tables: what they are, what they compute, what they hold and what they send."""
    stages = document["stages"]
    rows = range(len(stages))
    heaviest = max(rows, key=lambda row: stages[row]["bytes"]["total"])
    slowest = max(rows, key=lambda row: sum(stages[row]["seconds"].values()))
    fields = stage_fields(document, max(16, width // 4))
    return packed(fields, rows_shown(len(stages), whole, (heaviest, slowest)), width)


def stage_fields(document: Document, node_width: int) -> list[Field]:
    """Return the columns of the stages' table."""
    stages = document["stages"]
    return [*_places(stages, node_width), *_work(stages), *_sent(stages), *_memory(stages)]


def device_tables(document: Document, width: int, whole: bool) -> Iterator[Table]:
    """Return the devices' table, each with a bar of its memory: of its limit, or of the fullest device's."""
    devices = document["devices"]
    rows = range(len(devices))
    fullest = max(rows, key=lambda row: devices[row]["bytes"]["total"])
    busiest = max(rows, key=lambda row: devices[row]["busy_seconds_per_tick"])
    fields = device_fields(document, max(16, width // 5), max(8, min(30, width // 8)))
    return packed(fields, rows_shown(len(devices), whole, (fullest, busiest)), width)


def device_fields(document: Document, name_width: int, bar_cells: int) -> list[Field]:
    """Return the columns of the devices' table."""
    devices = document["devices"]
    used = [device["bytes"]["total"] for device in devices]
    limits = [device["memory_bytes"] for device in devices]
    bars = [bar(use / (limit or max(used) or 1), bar_cells) for use, limit in zip(used, limits, strict=True)]
    over = [limit is not None and use > limit for use, limit in zip(used, limits, strict=True)]
    fields = [
        words_field("device", "", [device["name"] for device in devices], name_width),
        words_field("type", "work", [device["type"] for device in devices], 16),
        words_field("stages", "work", [ranges_label(device["stages"]) for device in devices], 16),
        numbers_field("busy\na tick", "work", SECONDS, [device["busy_seconds_per_tick"] for device in devices]),
        Field(head="busy", cells=[percent(device["utilisation"]) for device in devices], group="work"),
        Field(head="memory", cells=bars, group="memory", left=True, styles=[_BAR_STYLES[full] for full in over]),
        numbers_field("used", "memory", BINARY, used),
    ]
    if any(limit is not None for limit in limits):
        texts = ["none" if limit is None else memory(limit) for limit in limits]
        marks = [f"{text}, too little" if full else text for text, full in zip(texts, over, strict=True)]
        fields.append(Field(head="limit", cells=marks, group="memory"))
    return fields


def _places(stages: Sequence[Document], node_width: int) -> list[Field]:
    kinds = [stage["kind"] for stage in stages]
    return [
        Field(head="stage", cells=[str(stage["index"]) for stage in stages], group=""),
        words_field("nodes", "", [nodes_label(stage["nodes"]) for stage in stages], node_width),
        Field(
            head="kind",
            cells=kinds,
            group="place",
            left=True,
            styles=[KIND_STYLES.get(kind, "") for kind in kinds],
        ),
        words_field("device", "place", [stage["device"] for stage in stages], 18),
        Field(head="depth", cells=[str(stage["depth"]) for stage in stages], group="place"),
        Field(head="stale\nupdates", cells=[number(stage["staleness"]) for stage in stages], group="place"),
        numbers_field("parameters", "place", COUNT_WORDS, [stage["parameters"] for stage in stages]),
    ]


def _work(stages: Sequence[Document]) -> Iterator[Field]:
    for key, scales in (("seconds", SECONDS), ("flops", FLOPS)):
        unit = column_of(scales, [value for stage in stages for value in stage[key].values()])
        for verb in ("forward", "backward"):
            yield numbers_field(verb, "work", scales, [stage[key][verb] for stage in stages], unit)


def _memory(stages: Sequence[Document]) -> Iterator[Field]:
    """Parts that no stage has are left out: the totals name them."""
    totals = [stage["bytes"]["total"] for stage in stages]
    unit = column_of(BINARY, totals)
    by_stage = [parts_of(stage["bytes"]) for stage in stages]
    for part in PARTS:
        if any(parts[part.key] for parts in by_stage):
            head = "\n".join(part.name.split(" "))
            yield numbers_field(head, "memory", BINARY, [parts[part.key] for parts in by_stage], unit)
    yield numbers_field("memory\ntotal", "memory", BINARY, totals, unit)


def _sent(stages: Sequence[Document]) -> Iterator[Field]:
    sent = [stage["channel_bytes"] for stage in stages]
    unit = column_of(BINARY, [value for both in sent for value in both.values()])
    for verb in ("forward", "backward"):
        yield numbers_field(f"sent\n{verb}", "sent", BINARY, [both[verb] for both in sent], unit)
