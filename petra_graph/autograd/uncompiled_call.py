"""A call that torch's compiler leaves alone; imported by code that it traces, since the mark imports the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable  # type: ignore[untyped-decorator]
def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return function(*arguments), run as it is; functions inside that are compiled themselves stay so."""
    return function(*arguments)
