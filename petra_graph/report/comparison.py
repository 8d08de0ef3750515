"""Plans of one network side by side, as `plan --compare` and variations of a spec give them: answers, a table, notes.

A value that does not apply, or that belongs to a plan that does not exist, is None and a dash here; the row's note says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from petra_graph import units
from petra_graph.compiler.plan import ComparedPlan, Comparison
from petra_graph.program.schedule import schedule_text
from petra_graph.report.tables import Column, name_column, value_column
from petra_graph.units import factor, memory, noun, number, one_line, plural


def comparison_title(compared: Comparison) -> str:
    return f"{one_line(compared.name)}: {'methods' if _of_methods(compared) else 'plans'} compared"


def _of_methods(compared: Comparison) -> bool:
    """Whether these are methods, and other uses of the devices, of one specification."""
    return compared.rows[0].name is None


def row_names(compared: Comparison) -> list[str]:
    """Name the rows: of methods, and where devices are used otherwise than in the first row, how."""
    return [row.name or _method_name(row, compared.rows[0]) for row in compared.rows]


def _method_name(row: ComparedPlan, first: ComparedPlan) -> str:
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
    """Return the figures of each plan."""
    rows, methods = compared.rows, _of_methods(compared)

    def values(head: str, key: str, write: Callable[[Any], str]) -> Column:
        return value_column(head, [getattr(row, key) for row in rows], write)

    columns = [
        name_column("method, schedule" if methods else "plan", row_names(compared)),
        values("fullest\ndevice", "memory_peak", memory),
        *(
            [values("fits", "fits", {True: "yes", False: "no"}.__getitem__)]
            if any(row.fits is False for row in rows)
            else []
        ),
        values("speed-up", "speedup", factor),
        values("stale\nupdates", "staleness", number),
    ]
    if not brief or not any(row.speedup for row in rows):
        columns.append(values("samples\na second", "samples_per_second", units.PLAIN.text))
    if not brief:
        columns.append(values("memory\ntotal", "memory_total", memory))
    if methods and not brief:
        columns += [
            values("paper's\ncount", "paper_total", units.DECIMAL.text),
            values("sent", "channel_bytes", memory),
            values("work", "flops", units.flops),
        ]
    return columns


def comparison_answers(compared: Comparison) -> list[tuple[str, str]]:
    """Return which plan is the fastest, which the smallest, and of methods how many fit and which to choose."""
    rows, names, found = compared.rows, row_names(compared), list[tuple[str, str]]()
    fits = [row.fits for row in rows]
    if any(fit is not None for fit in fits):
        more = "" if all(fits) else "; the notes say why the others do not"
        found.append(("fits", f"{fits.count(True)} of {len(fits)}{more}"))
    usable = [(name, row, row.figures) for name, row in zip(names, rows, strict=True) if row.figures]
    if usable:
        name, row, _ = max(usable, key=lambda one: one[2].samples_per_second)
        found.append(("fastest", f"{_speed(row)}; {name}"))
        name, _, figures = min(usable, key=lambda one: one[2].memory_peak)
        found.append(("smallest", f"{_on_the_fullest(figures.memory_peak)}; {name}"))
    if compared.recommended is not None:
        chosen = rows[compared.recommended]
        late = chosen.staleness or 0.0
        reasons = [
            names[compared.recommended],
            _speed(chosen),
            f"{plural(late, 'update')} stale" if late else "no gradient is late",
            _on_the_fullest(chosen.memory_peak or 0),
        ]
        found.append(("choose", "; ".join(reasons)))
        found.append(("set", "; ".join(chosen.set) or "nothing: it is what the spec says"))
    return found


def _speed(row: ComparedPlan) -> str:
    return factor(row.speedup) if row.speedup else units.rate(row.samples_per_second or 0.0)


def _on_the_fullest(value: float) -> str:
    return f"{memory(value)} on the fullest device"


def comparison_notes(compared: Comparison) -> list[str]:
    """Return what is to be said of single rows, and of the speed-ups."""
    notes = [f"{name}: {row.note}" for name, row in zip(row_names(compared), compared.rows, strict=True) if row.note]
    return [*notes, f"speed-ups are over {compared.speedup_over}"]
