"""Plans as JSON documents, as they were saved in `tests/report/plans`, and the same with names that are hard to show."""

import json
from collections.abc import Mapping
from typing import Any

from petra_graph.compiler.plan import Plan, read_plan
from tests.support import ROOT

FOLDER = ROOT / "tests" / "report" / "plans"
Document = dict[str, Any]


def as_plan(document: Document) -> Plan:
    return read_plan(json.dumps(document), "a plan")


def three_stages() -> Document:
    return _saved("three_stages")


def branches() -> Document:
    return _saved("branches")


def hostile() -> Document:
    """Names that break out of whatever quotes them badly."""
    nodes = [
        'a"];x-->y',
        "</script><script>alert(1)</script>",
        "[red]bold[/red]",
        "日本語\n層",
        "`#|{}<b>&amp;\\",
        "end",
        "{}",
    ]
    made = _renamed(three_stages(), nodes, ['gpu"<0>', "[link]"], "<i>x</i> [bold]")
    made["warnings"] = ["<img onerror=x> [red]warn", "--><!-- ]]>"]
    made["assumptions"] = ["http" + "://example.org is text [/]"]
    return made


def long_names() -> Document:
    """Names that are wider than any place for them."""
    nodes = [*(f"a-name-without-a-break-{'x' * 80}{index}" for index in range(6)), "W" * 30]
    devices = ["machine-with-a-long-name.example.org:cuda:0" * 2, "cuda:1"]
    return _renamed(three_stages(), nodes, devices, "a-network-" + "y" * 120)


def _saved(name: str) -> Document:
    document: Document = json.loads((FOLDER / f"{name}.json").read_text())
    return document


def _renamed(document: Document, nodes: list[str], devices: list[str], name: str) -> Document:
    """Return a plan with other names of its nodes and devices."""
    old = [one["name"] for key in ("nodes", "devices") for one in document[key]]
    new: Mapping[str, str] = {**dict(zip(old, [*nodes, *devices], strict=True)), document["name"]: name}

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: one if key == "kind" else walk(one) for key, one in value.items()}
        if isinstance(value, list):
            return [walk(one) for one in value]
        return new.get(value, value) if isinstance(value, str) else value

    walked: Document = walk(document)
    return walked
