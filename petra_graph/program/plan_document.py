"""The type of a plan's JSON document, which the compiler writes and the report reads."""

from __future__ import annotations

from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]
"""A whole plan, or one of its objects such as a stage; `petra_graph.compiler.document` lists the keys."""
