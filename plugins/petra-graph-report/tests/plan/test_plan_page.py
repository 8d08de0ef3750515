"""The page of a plan: one file that fetches nothing, with every node, stage and block, and every name as text."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from petra_graph_report.plan.plan_blocks import DEVICE_COLOURS
from petra_graph_report.plan.plan_page import plan_page

from petra_graph.report.plan.plan_answers import answers
from petra_graph.units import bounded, one_line
from tests.support.contrast import GRAPHICS, TEXT, contrast, schemes
from tests.support.html_page import Page, assert_fetches_nothing
from tests.support.plan_documents import (
    branches,
    document,
    hostile,
    long_names,
    overlapped,
    revnet50,
    three_stages,
)

PLANS = [three_stages, branches, revnet50, hostile, overlapped]


@pytest.fixture(scope="session", params=PLANS, ids=lambda plan: plan.__name__)
def plan(request):
    return request.param()


@pytest.fixture(scope="session")
def text(plan):
    return plan_page(plan)


@pytest.fixture(scope="session")
def page(text):
    return Page(text)


def test_nothing_is_fetched(text, page):
    assert_fetches_nothing(text, page)


def test_the_pages_own_policy_forbids_fetching(page):
    (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_names_are_text(plan, page):
    """A name that opens a script is shown, not run."""
    assert page.all("script") == []
    shown = "".join(page.texts)
    for text in [plan["name"], *plan["warnings"], *plan["assumptions"]]:
        assert text.replace("`", "") in shown
    for node in plan["nodes"]:
        assert re.sub(r"\s", " ", node["name"]) in shown


def test_links_lead_somewhere_and_no_drawing_has_an_identifier_of_another(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {attributes["href"] for attributes in page.all("a")} <= {f"#{name}" for name in ids}
    assert {attributes["xlink:href"] for attributes in page.all("use")} <= {f"#{name}" for name in ids}
    clips = [attributes["clip-path"] for _, attributes in page.elements if "clip-path" in attributes]
    assert {clip.removeprefix("url(").removesuffix(")") for clip in clips} <= {f"#{name}" for name in ids}


def test_the_answers_come_first(plan, page):
    questions = [answer.question for answer in answers(plan)]
    assert [text for text in page.texts if text in questions] == questions


def test_warnings_come_before_all_drawings_and_assumptions_after_the_graph_folded():
    text = plan_page(branches())
    assert text.index("5 stages on 4 devices") < text.index("<svg")
    assert (
        text.index("</svg>")
        < text.index("<summary>2 assumptions")
        < text.index("links cost nothing")
        < text.index('id="memory"')
    )
    assert "<details open" not in text[: text.index("links cost nothing")]


def test_colours_are_defined_for_light_and_dark(text, page):
    (style,) = (one for one in page.texts if ":root" in one)
    assert "prefers-color-scheme: dark" in style
    assert set(re.findall(r"var\((--\w[\w-]*)\)", text)) <= set(re.findall(r"(--\w[\w-]*):", style))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_the_contrast_that_wcag_asks_for(scheme):
    colours = schemes(files("petra_graph_report").joinpath("page.css").read_text(encoding="utf-8"))[scheme]
    for text in ("text", "soft", "accent", "bad"):
        assert min(contrast(colours[text], colours[ground]) for ground in ("ground", "raised")) >= TEXT, text
    assert contrast(colours["warn"], colours["warn-ground"]) >= TEXT
    series = [colour for name, colour in colours.items() if name.startswith("series-")]
    assert len(set(series)) == 6
    for colour in series:
        assert contrast(colour, colours["ground"]) >= TEXT
    for shape in ("edge", "forward", "backward", "update", "box"):
        assert contrast(colours[shape], colours["ground"]) >= GRAPHICS, shape
    for labelled in (colours["forward"], colours["backward"], *DEVICE_COLOURS):
        assert contrast("#222222", labelled) >= TEXT, labelled


def drawings(text: str, label: str) -> list[str]:
    return re.findall(rf'<svg role="img" aria-label="{label}.*?</svg>', text, re.DOTALL)


def test_the_graph_has_every_node(plan, text):
    (graph,) = drawings(text, "graph")
    texts = Page(graph).texts
    for node in plan["nodes"]:
        assert bounded(one_line(node["name"]), 14) in texts


def alone():
    """Two stages, a device each."""
    return document("alone", [("a", "b")], [["a"], ["b"]], ["cpu:0", "cpu:1"])


def test_memory_has_a_bar_for_each_stage_and_for_devices_with_several():
    for made, pictures in ((three_stages(), 2), (alone(), 1)):
        text = plan_page(made)
        (bars,) = drawings(text, "memory of stages")
        assert sum(bool(re.match(r"\d+  ", one)) for one in Page(bars).texts) == len(made["stages"])
        assert len(drawings(text, "memory of")) == pictures


def test_a_device_that_is_too_small_is_seen():
    made = alone()
    made["devices"][0]["memory_bytes"] = 10 * 2**20
    (bars,) = drawings(plan_page(made), "memory of stages")
    assert sum(one.endswith("MiB of 10 MiB") for one in Page(bars).texts) == 1
    assert "fill: var(--bad)" in bars


def test_blocks_are_named_where_there_is_room(plan, text):
    names = {f"{block['verb'][0].upper()}{block['micro_batch']}" for block in plan["timeline"]}
    for drawing in drawings(text, "timeline"):
        found = {one for one in Page(drawing).texts if re.fullmatch(r"[FB]\d+", one)}
        assert found <= names
        assert found


def test_a_plan_without_a_timeline():
    text = plan_page(three_stages() | {"timeline": []})
    Page(text)
    assert "Nothing was simulated." in text


def test_names_are_cut_to_the_room_that_they_have():
    (graph,), (bars,) = (drawings(plan_page(long_names()), label) for label in ("graph", "memory of stages"))
    assert max(map(len, Page(graph).texts)) <= 16
    assert any(re.fullmatch(r"1 · ….*cuda:0", text) for text in Page(graph).texts), "the end of a device's name"
    assert max(map(len, Page(bars).texts)) <= 36


def test_two_hundred_stages_are_all_there(two_hundred, large_page):
    (graph,), (bars,), (_, detail) = (drawings(large_page, label) for label in ("graph", "memory of", "timeline"))
    texts = [set(Page(drawing).texts) for drawing in (graph, bars, detail)]
    for stage in two_hundred["stages"]:
        assert stage["nodes"][0] in texts[0]
        assert f"{stage['index']}  {stage['nodes'][0]}" in texts[1]
        assert f"{stage['index']}  {stage['device']}  {stage['nodes'][0]}" in texts[2]


def test_blocks_too_thin_to_draw_are_drawn_as_where_they_are(large_page):
    assert "too many blocks for one drawing" in large_page
    assert len(large_page) < 2_000_000


def test_edges_say_what_carries_their_messages():
    plan = branches()
    cut = sum(edge["cut"] for edge in plan["edges"])
    assert Page(plan_page(plan)).texts.count("shared-memory") == cut > 0
    for edge in plan["edges"]:
        edge.pop("transport")  # a plan from before it was there
    assert "shared-memory" not in plan_page(plan)


def test_a_plan_from_before_some_keys_is_shown():
    older = three_stages()
    for key in ("run", "replicas", "certainty", "delay_aware"):
        older.pop(key, None)
    for device in older["devices"]:
        device.pop("capacity_bytes", None)
    older["timing"].pop("exposed_communication", None)
    Page(plan_page(older))
