"""The type and the version of a plan's JSON document, which the compiler writes and the report reads."""

from __future__ import annotations

from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]
"""A whole plan, or one of its objects such as a stage; `petra_graph.compiler.document` lists the keys."""

VERSION = 1
"""Of the document's keys and their meaning; a key that is added changes none."""
