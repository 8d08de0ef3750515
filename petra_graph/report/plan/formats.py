"""The formats that other programs read, by their names on the command line; JSON is the document itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from petra_graph.program.plan_document import Document
from petra_graph.report.plan.graph_languages import dot, mermaid
from petra_graph.report.plan.html import html
from petra_graph.report.plan.trace import trace

FORMATS: Mapping[str, Callable[[Document], str]] = {"mermaid": mermaid, "dot": dot, "html": html, "trace": trace}
