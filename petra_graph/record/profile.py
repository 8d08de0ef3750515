"""Profiles as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from petra_graph.errors import Problem, SpecError
from petra_graph.program.devices import Link
from petra_graph.program.profile import Profile
from petra_graph.record.environment import environment
from petra_graph.record.run_directory import make_folder_of, write_json

FORMAT = 1


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile, with the environment that it was taken in.

    Raises:
        RunFailed: the disk refuses.
    """
    make_folder_of(path)
    write_json(path, {"format": FORMAT, **attrs.asdict(profile), "environment": environment()})


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
        micro_batch=int(found["micro_batch"]),
        compute=str(found["compute"]),
        threads=int(found["threads"]),
        nodes={
            name: {operation: float(seconds) for operation, seconds in operations.items()}
            for name, operations in found["nodes"].items()
        },
        outside=float(found["outside"]),
        link=None if link is None else Link(**link),
    )
