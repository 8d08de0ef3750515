"""The six answers that a plan begins with, on a terminal and on its page: does it fit, how full, how fast, how stale, what to change, how sure.

An answer is a value and what belongs to it, the most important first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import frozen

from petra_graph.program.plan_document import Document, excess, room
from petra_graph.report.plan.short_labels import ranges_label
from petra_graph.units import PLAIN, duration, factor, listed, memory, noun, one_line, percent, plural, rate

ASSUMPTIONS_PAGE = "petra_graph/compiler/README.md#assumptions"
"""The page that has the assumptions of all plans."""
_ACTION = re.compile(r"[:;] ((?:set |[a-z_]+\.[a-z_]+ = ).*?)(?:\. [A-Z].*)?$")
"""What a warning says to do first: keys to set."""
_TIMES = "times are "
"""The beginning of the assumption that says where a plan's times are from."""


@frozen
class Answer:
    """An answer, with its question in a word."""

    question: str
    value: str
    more: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join([self.value, *self.more])


def answers(document: Document, assumptions: str = "") -> list[Answer]:
    """Return the answers.

    Args:
        document: the plan.
        assumptions: where the plan's assumptions can be read.
    """
    return [
        _fit(document),
        _fullest(document),
        _speed(document),
        _staleness(document),
        _change(document),
        _certainty(document, assumptions),
    ]


def fullest_device(document: Document) -> Document:
    """Return the device whose memory is used most: by its share where the memory of every device is known, else by its bytes."""
    devices: list[Document] = document["devices"]
    known = all(room(device) for device in devices)
    return max(devices, key=lambda device: device["bytes"]["total"] / ((room(device) or 1) if known else 1))


def _fit(document: Document) -> Answer:
    devices = document["devices"]
    unknown = [device for device in devices if not room(device)]
    over = [device for device in devices if excess(device)]
    if over:
        most = max(over, key=excess)
        more = f"{_name(most)} needs {memory(excess(most))} more than its {memory(room(most) or 0)}"
        others = f"{plural(len(over) - 1, 'other device')} too" if len(over) > 1 else ""
        return Answer("fits", "no", tuple(filter(None, (more, others))))
    if unknown:
        kinds = listed(dict.fromkeys(one_line(device["type"]) for device in unknown))
        return Answer("fits", "unknown", (f"the memory of {kinds} is not stated: set partition.memory",))
    fullest = fullest_device(document)
    whole = room(fullest) or 1
    left = whole - fullest["bytes"]["total"]
    return Answer("fits", "yes", (f"{memory(left)} ({percent(left / whole, 0)}) to spare on the fullest device",))


def _fullest(document: Document) -> Answer:
    device = fullest_device(document)
    whole = room(device)
    of = "" if whole is None else f" of {memory(whole)}"
    stages = f"{noun(len(device['stages']), 'stage')} {ranges_label(device['stages'])}"
    return Answer("fullest", f"{memory(device['bytes']['total'])}{of}", (f"{_name(device)} with {stages}",))


def _name(device: Document) -> str:
    name, kind = one_line(device["name"]), one_line(device["type"])
    return name if name == kind else f"{name} ({kind})"


def _speed(document: Document) -> Answer:
    timing, run = document["timing"], document.get("run") or {}
    about = "" if timing.get("exact", True) else "about "
    baseline = f"{about}{factor(timing['speedup_over_reversible_backprop'])} one device with reversible-backprop"
    spent, planned, expected = run.get("seconds"), timing["samples_per_second"], expected_throughput(document)
    if expected is None:
        speed, times = rate(planned), duration(spent or 0.0)
    else:
        low, high = expected
        speed = f"{PLAIN.text(low)} to {rate(high)}"
        times = f"{duration((spent or 0.0) * planned / high)} to {duration((spent or 0.0) * planned / low)}"
    training = () if spent is None else (f"{times} for {plural(run['epochs'], 'epoch')}",)
    return Answer("speed", baseline, (speed, *training))


def expected_throughput(document: Document) -> tuple[float, float] | None:
    """Return the samples a second between which a run is to be expected; None in a plan of a version that did not say it."""
    sure = document.get("certainty") or {}
    low, high = sure.get("samples_per_second_low"), sure.get("samples_per_second_high")
    return None if low is None or high is None else (low, high)


def _staleness(document: Document) -> Answer:
    worst = max(document["stages"], key=lambda stage: stage["staleness"])
    if not worst["staleness"]:
        return Answer("staleness", "none", ("no gradient is late",))
    known = f"known to {' and '.join(plugins)}" if (plugins := document.get("delay_aware")) else ""
    more = filter(None, (f"the gradients of stage {worst['index']}, the latest", known))
    return Answer("staleness", plural(worst["staleness"], "update"), tuple(more))


def _change(document: Document) -> Answer:
    """Return the keys that the first warning which names any says to set, or else the first warning."""
    warnings = [one_line(text) for text in document["warnings"]]
    if not warnings:
        return Answer("change", "nothing", ("the plan has no warnings", "plan --compare looks at other methods"))
    found = [(place, action[1]) for place, text in enumerate(warnings, start=1) if (action := _ACTION.search(text))]
    place, text = found[0] if found else (1, warnings[0])
    which = f"warning {place} of {len(warnings)}" if len(warnings) > 1 else "the warning"
    return Answer("change", text, (f"{which} says why",))


def _certainty(document: Document, assumptions: str) -> Answer:
    said = (assumptions,) if assumptions else ()
    lines = (one_line(text) for text in document["assumptions"])
    clauses = (re.split("[,:] ", text.removeprefix(_TIMES))[0] for text in lines if text.startswith(_TIMES))
    return Answer("how sure", next(clauses, "unknown"), (*_accuracy(document), *said))


def _accuracy(document: Document) -> Iterator[str]:
    """Yield how far the speed that such plans gave was from what runs measured."""
    if found := expected_throughput(document):
        planned = document["timing"]["samples_per_second"]
        low, high = (planned / each for each in reversed(found))
        yield f"such plans gave {low:.1f} to {high:.1f} times the speed that runs had"
