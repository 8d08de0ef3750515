"""Settings of the process that all code shares, and that no plugin may leave changed: it would be another one's error."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

_UNCHANGED: Mapping[str, Any] = {"torch.is_grad_enabled()": True, "torch.get_default_dtype()": "torch.float32"}
"""Those of torch before it is imported."""

SET_WITHIN = "set it within `with`, where it is needed"
"""What to do about a setting that is left changed."""


def settings() -> Mapping[str, Any]:
    """Return the settings, by how code reads them."""
    torch, found = sys.modules.get("torch"), dict(_UNCHANGED)
    if torch is not None and hasattr(torch, "get_default_dtype"):
        found = {
            "torch.is_grad_enabled()": torch.is_grad_enabled(),
            "torch.get_default_dtype()": str(torch.get_default_dtype()),
        }
    try:
        return {**found, "the working directory": os.getcwd()}  # noqa: PTH109  what chdir takes
    except FileNotFoundError:  # it has been removed since
        return {**found, "the working directory": ""}


def put_back(before: Mapping[str, Any]) -> str:
    """Give the settings their former values, and return which had another one, as the end of a sentence; "" where none had."""
    changed = [f"{name} is {value}" for name, value in settings().items() if value != before[name]]
    if changed:
        import torch

        torch.set_grad_enabled(before["torch.is_grad_enabled()"])
        torch.set_default_dtype(getattr(torch, before["torch.get_default_dtype()"].removeprefix("torch.")))
        os.chdir(before["the working directory"])
    return " and ".join(changed)
