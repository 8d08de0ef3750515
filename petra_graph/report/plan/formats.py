"""The formats that other programs read, by the name that a command line knows them by; JSON is the document itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from petra_graph.report.plan.document import Document
from petra_graph.report.plan.dot import dot
from petra_graph.report.plan.html import html
from petra_graph.report.plan.mermaid import mermaid
from petra_graph.report.plan.trace import trace

FORMATS: Mapping[str, Callable[[Document], str]] = {"mermaid": mermaid, "dot": dot, "html": html, "trace": trace}
