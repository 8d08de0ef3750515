"""Profiles as files."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

import attrs

from petra_graph.errors import Problem, SpecError
from petra_graph.program.devices import Link
from petra_graph.program.profile import Profile
from petra_graph.record.environment import environment
from petra_graph.record.run_directory import write_output

FORMAT = 1


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile, with the environment that it was taken in.

    Raises:
        RunFailed: the disk refuses.
    """
    values = {"format": FORMAT, **attrs.asdict(profile), "environment": environment()}
    write_output(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def read_profile(path: Path) -> Profile:
    """Read what `write_profile` wrote.

    Raises:
        SpecError: it cannot be read, or is no profile.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _profile(found)
    except OSError as error:
        raise SpecError(f"cannot read the profile {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        hint = "`petra-graph profile SPEC --output FILE` writes one"
        raise SpecError(Problem(message=f"{path} is no profile", hint=hint)) from None


def _profile(found: dict[str, Any]) -> Profile:
    if found["format"] != FORMAT:
        raise ValueError(found["format"])
    link = found["link"]
    return Profile(
        name=str(found["name"]),
        device=str(found["device"]),
        kind="cuda" if found["kind"] == "cuda" else "cpu",
        micro_batch=int(found["micro_batch"]),
        compute=str(found["compute"]),
        threads=int(found["threads"]),
        nodes={
            name: {operation: _seconds(value) for operation, value in operations.items()}
            for name, operations in found["nodes"].items()
        },
        sizes={name: (int(parameters), int(size)) for name, (parameters, size) in found["sizes"].items()},
        outside=_seconds(found["outside"]),
        link=None if link is None else Link(**link),
    )


def _seconds(value: object) -> float:
    seconds = float(value)  # type: ignore[arg-type]  # anything else is a TypeError, and no profile
    if not (isfinite(seconds) and seconds >= 0):
        raise ValueError(value)
    return seconds
