"""Pages: one file that fetches nothing, whatever names a plan or a run has, with what each section promises."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser

import pytest

from petra_graph.errors import SpecError
from petra_graph.planning.compare_plans import compare_methods
from petra_graph.planning.plan_spec import Planner
from petra_graph.record.run_directory import read_run
from petra_graph.report.pages.plan_page import page as plan_page
from petra_graph.report.pages.runs_page import runs_page
from tests.support.plan_documents import as_plan, branches, hostile, long_names, three_stages
from tests.support.runs import SPEC

VOID = {"meta"}
FETCHING = {"src", "srcset", "action", "formaction", "poster", "data", "background", "ping"}


class Page(HTMLParser):
    """A page taken apart: elements with their attributes and texts; closing tags must fit."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), "an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str, kind: str | None = None) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag and (kind is None or attrs.get("class") == kind)]


def assert_fetches_nothing(text: str, page: Page) -> None:
    """No element, attribute or style of a page names another file."""
    for _, attributes in page.elements:
        assert not FETCHING & attributes.keys()
        assert all(not name.startswith("on") for name in attributes)
        assert all((attributes.get(name) or "#").startswith("#") for name in ("href", "xlink:href"))
        assert not any(re.search(r"//|url\((?!#)", value or "") for value in attributes.values())
    assert {name for name, _ in page.elements}.isdisjoint({"link", "img", "iframe", "object", "embed", "base"})
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert not re.search(r"url\(|@import|//", style)


def sections(page):
    return re.findall(r'<h2 id="([\w ]+)"', page)


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("plan", [three_stages, branches, hostile, long_names])
def test_the_page_of_a_plan(plan):
    text = plan_page(as_plan(plan()))
    page = Page(text)
    assert_fetches_nothing(text, page)
    assert sections(text) == ["memory", "timeline", "tables", "assumptions"]
    assert "script" not in {name for name, _ in page.elements}
    assert len(page.all("svg")) == 2
    shown = "".join(page.texts)
    for device in plan()["devices"]:
        assert device["name"][:50].replace("\n", " ") in shown


def test_the_page_of_a_comparison(write):
    compared = compare_methods(Planner(write("small.toml", SPEC), ["partition.devices=2"]))
    text = plan_page(compared)
    assert_fetches_nothing(text, Page(text))
    assert sections(text) == ["tables", "assumptions"]
    assert text.count("<tr>") == 1 + len(compared.rows)


@pytest.fixture(scope="module")
def pages(saved_runs):
    runs = {name: read_run(directory) for name, directory in saved_runs.items()}
    runs["first"].processes[0]["peak_bytes"] += 2**20  # of tests before it, a process may have grown more than by a run
    return {
        "one run": runs_page([runs["first"]]),
        "one run with a probe": runs_page([runs["probed"]]),
        "three runs": runs_page(list(runs.values())),
    }


@pytest.mark.parametrize("name", ["one run", "one run with a probe", "three runs"])
def test_a_page_of_runs_fetches_nothing(pages, name):
    assert_fetches_nothing(pages[name], Page(pages[name]))
    assert re.findall(r'<a href="#([\w ]+)">', pages[name]) == sections(pages[name])


def test_what_the_run_came_to_and_what_it_measured(pages, saved_runs):
    page = Page(pages["one run"])
    summary = json.loads((saved_runs["first"] / "summary.json").read_text())
    for text in ("2/2", f"{100 * summary['test']['top1']:.2f} %"):
        assert text in "".join(page.texts)
    assert {"planned", "measured"} <= {word for text in page.texts for word in text.split()}


def test_a_run_that_failed(saved_run):
    error = f"after {'many' * 30} epochs, the loss is <nan>"
    change(saved_run / "summary.json", status="failed", error=[error], measured=None)
    assert f"failed: after {'many' * 30} epochs, the loss is &lt;nan&gt;" in runs_page([read_run(saved_run)])


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SpecError, match=r"a page needs matplotlib\n.*petra-graph\[report\]"):
        plan_page(as_plan(three_stages()))
