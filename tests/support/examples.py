"""How many examples of a property are tried."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(most: int, **others: Any) -> settings:
    """Return settings with as many examples as the profile has, or fewer."""
    return settings(max_examples=min(most, settings().max_examples), **others)
