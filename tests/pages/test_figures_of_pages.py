"""Figures in the tables of pages stand in the result files that their sections link."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.pages import pages

RESULTS = re.compile(r"\]\(([\w./-]*results/[\w.-]+\.json)\)")
DERIVED = {"difference to backpropagation with `sgd`", "late", "staleness of stage 1, in updates"}
"""Columns that follow from others of their table, from differences of results, or from the schedule; one was printed only."""

UNITS = (1, 100, 1 / 2**10, 1 / 2**20, 1 / 2**30)
"""Of a figure: as in the results, a share in percent, MiB in GiB, or bytes in MiB or GiB."""


def sections():
    """Yield each section that links results: its title, the tables after its first link, and the numbers of the results."""
    for page in pages():
        for section in re.split(r"(?m)^(?=##+ )", page.text):
            if links := RESULTS.findall(section):
                results = [json.loads((page.path.parent / link).read_text(encoding="utf-8")) for link in links]
                numbers = list(numbers_of(results))
                title = f"{page.name}, {section.splitlines()[0].lstrip('# ')}"
                yield pytest.param(section[section.index(links[0]) :], numbers, id=title)


def numbers_of(value: Any) -> Iterator[float]:
    """Yield all numbers, and the sums of lists of bytes."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield abs(value)
    elif isinstance(value, dict | list):
        items = list(value.values()) if isinstance(value, dict) else value
        for item in items:
            yield from numbers_of(item)
        if isinstance(value, list) and all(isinstance(item, int) for item in items):
            yield sum(items)


def figures(text: str) -> Iterator[str]:
    """Yield the decimal fractions in the cells of tables, without first columns, derived ones, and remarks in brackets after a figure."""
    header: list[str] = []
    for above, line in zip(["", *text.splitlines()], text.splitlines(), strict=False):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not line.startswith("|") or line.startswith("|---"):
            continue
        if not above.startswith("|"):
            header = cells
            continue
        for name, cell in zip(header[1:], cells[1:], strict=True):
            if name not in DERIVED:
                yield from re.findall(r"(?<![\w.])\d+\.\d+(?![\w.-])", re.sub(r"(?<=\S) \(.*?\)", "", cell))


SECTIONS = list(sections())


@pytest.mark.parametrize(("text", "numbers"), SECTIONS)
def test_figures_are_results(text, numbers):
    strange = [figure for figure in figures(text) if not any(is_rounded(figure, number) for number in numbers)]
    assert not strange


def is_rounded(figure: str, number: float) -> bool:
    """Whether a figure is a number in one of the units, rounded to the figure's digits."""
    half = 0.5001 * 10 ** -len(figure.partition(".")[2])
    return any(abs(number * unit - float(figure)) <= half for unit in UNITS)


def test_there_are_figures():
    assert sum(len(list(figures(one.values[0]))) for one in SECTIONS) > 300
