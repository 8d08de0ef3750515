"""Files of a run's directory as they are read: its resolved specification, its JSON, the packages of its plugins; without torch."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from petra_graph.errors import SpecError
from petra_graph.program.plan_document import faults
from petra_graph.record.metrics import METRICS
from petra_graph.spec.regular_file import open_regular, read_regular

_HINT = "name one that `petra-graph run` has made, as in runs/20260131T120000Z-NAME-3f9a1c"


def resolved_spec(directory: Path) -> Mapping[str, Any]:
    """Read the specification that a run resolved.

    Raises:
        SpecError: this is not a run's directory, or the file is damaged.
    """
    path = directory / "resolved.toml"
    try:
        text = read_regular(path).decode()
        open_regular(directory / METRICS).close()
    except OSError:
        message = f"{directory} is not a run's directory: it has no resolved.toml and metrics.jsonl"
        raise SpecError(message, hint=_HINT) from None
    except UnicodeDecodeError as error:
        raise damaged(path, error) from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from None


def read_json(path: Path, kind: type, shape: Any = None) -> Any | None:
    """Return what a run's JSON file holds; None where there is no file.

    Args:
        shape: of the value, as `json_shape.faults` takes it; None: any.

    Raises:
        SpecError: it holds no JSON, or a value of another kind or shape.
    """
    try:
        value = json.loads(read_regular(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error) from None
    if not isinstance(value, kind):
        raise damaged(path, TypeError(f"it holds a {type(value).__name__}"))
    if shape is not None and (found := next(faults(value, shape, "the file"), None)):
        raise damaged(path, ValueError(found))
    return value


def plugin_packages(spec: object) -> Mapping[str, str]:
    """Return the packages of the plugins of a run, by "blocks/NAME", if `spec` is its resolved specification; {} of any other one."""
    if isinstance(spec, str) and Path(spec).name == "resolved.toml":
        with suppress(SpecError):
            written = (read_json(Path(spec).parent / "env.json", dict) or {}).get("plugins")
            if isinstance(written, dict):
                return {name: package for name, package in written.items() if isinstance(package, str)}
    return {}


def damaged(path: Path, error: Exception) -> SpecError:
    reason = getattr(error, "strerror", None) or f"{error}"
    return SpecError(
        f"{path} is damaged: {reason}",
        "restore it from a copy, or remove it: a report says what is missing without it"
        if path.name == "summary.json"
        else "restore it from a copy, or leave this run out",
    )
