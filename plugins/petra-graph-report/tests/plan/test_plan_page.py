"""The page: well formed, whole, fetching nothing, and with nothing drawn over anything else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from importlib.resources import files
from itertools import pairwise

import pytest

from petra_graph.report.drawing.named_rows import ROW_NAME_MARGINS
from petra_graph.report.drawing.svg_markup import text_width
from petra_graph.report.plan.plan_contents import DEVICE_COLOURS
from petra_graph.report.plan.plan_page import plan_page
from tests.support.contrast import GRAPHICS, TEXT, contrast, schemes
from tests.support.html_page import Page, assert_fetches_nothing
from tests.support.plan_documents import branches, hostile, long_names, overlapped, revnet50, three_stages

PLANS = [three_stages, branches, revnet50, hostile, overlapped]


@pytest.fixture(scope="session", params=PLANS, ids=lambda plan: plan.__name__)
def plan(request):
    return request.param()


@pytest.fixture(scope="session")
def page(plan):
    return Page(plan_page(plan))


def test_nothing_is_fetched(plan, page):
    assert_fetches_nothing(plan_page(plan), page)


def test_the_pages_own_policy_forbids_fetching(page):
    (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def test_names_are_text(plan, page):
    """One script, ours: a name that closes ours and opens its own is shown, not run."""
    assert len(page.all("script")) == 1
    shown = "".join(page.texts)
    for text in [plan["name"], *plan["warnings"], *plan["assumptions"]]:
        assert text in shown
    for node in plan["nodes"]:
        assert re.sub(r"\s", " ", node["name"]) in shown


def test_links_lead_somewhere(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {attributes["href"] for attributes in page.all("a")} == {f"#{name}" for name in ids}


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


def test_colours_are_defined_for_light_and_dark(page):
    (style,) = (text for text in page.texts if ":root" in text)
    assert "prefers-color-scheme: dark" in style
    assert set(re.findall(r"var\((--\w[\w-]*)\)", plan_page(three_stages()))) <= set(
        re.findall(r"(--\w[\w-]*):", style)
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_the_contrast_that_wcag_asks_for(scheme):
    colours = schemes(files("petra_graph.report").joinpath("drawing/drawing.css").read_text(encoding="utf-8"))[scheme]
    for text in ("text", "soft", "accent", "bad"):
        assert min(contrast(colours[text], colours[ground]) for ground in ("ground", "raised")) >= TEXT, text
    assert contrast(colours["warn"], colours["warn-ground"]) >= TEXT
    for shape in ("edge", "forward", "backward", "update", "box"):
        assert contrast(colours[shape], colours["ground"]) >= GRAPHICS, shape
    for labelled in (colours["forward"], colours["backward"], *DEVICE_COLOURS):
        assert contrast("#222222", labelled) >= TEXT, labelled


@pytest.mark.parametrize(
    ("drawn", "kind"), [("nodes", "box"), ("edges", "edge")], ids=["a box for every node", "a path for every edge"]
)
def test_the_graph_is_whole(plan, page, drawn, kind):
    found = [a for tag, a in page.elements if tag in {"rect", "path"} and kind in (a.get("class") or "").split()]
    assert len(found) == len(plan[drawn])


def boxes(text: str, *kinds: str) -> dict[str, list[tuple[float, float]]]:
    """Blocks of these kinds by their height on the drawing: from where to where."""
    rows: dict[str, list[tuple[float, float]]] = {}
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="[\d.]+" class="(\w+)"', text)
    for x, y, width, kind in found:
        if kind in kinds:
            rows.setdefault(y, []).append((float(x), float(x) + float(width)))
    return rows


def drawings(text: str, kind: str) -> list[str]:
    return re.findall(rf'<svg [^>]*class="{kind}".*?</svg>', text, re.DOTALL)


@pytest.mark.parametrize("plan_of", [three_stages, branches, revnet50, overlapped])
def test_blocks_of_a_row_do_not_overlap(plan_of):
    document = plan_of()
    whole, detail = drawings(plan_page(document), "time")
    for drawing in (whole, detail):
        rows = boxes(drawing, "forward", "backward", "update")
        assert len(rows) == len(document["stages"]) * (1 + (plan_of is overlapped))
        for blocks in rows.values():
            for before, after in pairwise(sorted(blocks)):
                assert after[0] >= before[1] - 0.6  # an update has half a pixel at least
    assert sum(map(len, boxes(whole, "forward", "backward", "update").values())) == len(document["timeline"])


def test_a_memory_bar_is_as_long_as_its_parts():
    document = revnet50()
    (bars,) = drawings(plan_page(document), "bars")
    widths: dict[str, float] = {}
    for y, width in re.findall(r'<rect x="[\d.]+" y="([\d.]+)" width="([\d.]+)" height="[\d.]+" fill', bars):
        widths[y] = widths.get(y, 0.0) + float(width)
    totals = [stage["bytes"]["total"] for stage in document["stages"]]
    assert list(widths.values()) == pytest.approx([800 * total / max(totals) for total in totals], abs=0.05)


@pytest.mark.parametrize("plan_of", [*PLANS, long_names])
def test_no_drawing_is_wider_than_its_view(plan_of):
    """Texts too: a name is shortened to the room that it has."""
    found = re.findall(
        r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*class="(\w+)".*?</svg>', plan_page(plan_of()), re.DOTALL
    )
    assert {kind for *_, kind in found} == {"graph", "bars", "names", "time"}
    for drawing in re.findall(r"<svg .*?</svg>", plan_page(plan_of()), re.DOTALL):
        root = ET.fromstring(drawing)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for rect in root.iter("rect"):
            x, y, wide, high = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            assert 0 <= x <= x + wide <= width + 0.02
            assert 0 <= y <= y + high <= height + 0.02
        for text in root.iter("text"):
            kind = text.attrib.get("class", "")
            size = float(text.attrib.get("font-size", {"name": 12, "carries": 9}.get(kind, 10)))
            wide = text_width(text.text or "", size) * (1.15 if kind == "name" else 1)
            share = {"row": 1, "name": 0.5, "where": 0.5, "carries": 0.5, "label": 0.5, "axis": 0.5}.get(kind, 0)
            x = float(text.attrib["x"]) - share * wide
            assert 0 <= x <= x + wide <= width, text.text


def test_names_of_rows_take_the_room_that_they_need():
    names = drawings(plan_page(three_stages()), "names")[0]
    (width,) = {float(found) for found in re.findall(r'<svg width="([\d.]+)"', names)}
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", names)
    assert width == pytest.approx(max(text_width(text, 12) for text in texts) + ROW_NAME_MARGINS, abs=0.01)


def test_devices_with_several_stages_have_bars_of_their_own():
    assert [len(drawings(plan_page(plan()), "bars")) for plan in (revnet50, branches)] == [1, 2]


def test_a_plan_without_a_timeline():
    text = plan_page(three_stages() | {"timeline": []})
    Page(text)
    assert "Nothing was simulated." in text


def test_two_hundred_stages_are_all_there(two_hundred, large_page):
    page = Page(large_page)
    graph, detail = (drawings(large_page, kind)[-1] for kind in ("graph", "time"))
    bars, _, names = drawings(large_page, "names")
    for place, stage in enumerate(two_hundred["stages"]):
        assert f"stage {stage['index']}, depth {stage['depth']}<" in graph
        assert f">{stage['nodes'][0]}</text>" in graph
        assert f">{stage['index']}  {stage['nodes'][0]}</text>" in bars
        assert f">{stage['index']}  {stage['device']}  {stage['nodes'][0]}</text>" in names, place
    assert len(page.all("rect", "box reversible")) == 197
    assert len(boxes(detail, "forward")) == 200


def test_two_hundred_stages_are_spaced_so_that_they_can_be_read(large_page):
    bars, _, detail = drawings(large_page, "names")
    for drawing in (bars, detail):
        heights = [float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*class="row"', drawing)]
        assert len(heights) == 200
        assert min(after - before for before, after in pairwise(heights)) >= 14


def test_blocks_too_thin_to_draw_are_drawn_as_where_they_are(large_page):
    whole, _ = drawings(large_page, "time")
    assert len(re.findall("<path", whole)) == 400
    assert "too many blocks for one drawing" in large_page
    assert len(large_page) < 2_000_000


def test_edges_say_what_carries_their_messages():
    plan = branches()
    cut = sum(edge["cut"] for edge in plan["edges"])
    assert Page(plan_page(plan)).texts.count("shared-memory") == cut > 0
    for edge in plan["edges"]:
        edge.pop("transport")  # a plan from before it was there
    assert "shared-memory" not in plan_page(plan)
