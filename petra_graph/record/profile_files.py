"""Profiles as files."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from petra_graph.errors import SpecError, shown
from petra_graph.program.node_costs import Profile
from petra_graph.record.run_directory import environment, write_output

FORMAT = 4
_REMEDY = "`petra-graph profile SPEC --output FILE`"


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile, with the environment that it was measured in; raise RunFailed if the disk refuses."""
    values = {"format": FORMAT, **attrs.asdict(profile), "environment": environment()}
    write_output(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def read_profile(path: Path) -> Profile:
    """Read a profile that `write_profile` wrote; raise SpecError if it cannot be read, is not a profile, or has another format."""
    from cattrs import Converter  # takes longer to import than most plans without a profile to be made

    try:
        values = json.loads(path.read_bytes())
        if (found := values["format"]) == FORMAT:
            return Converter(detailed_validation=False).structure(values, Profile)
    except OSError as error:
        raise SpecError(f"cannot read the profile {path}: {error.strerror or error}") from None
    except Exception:  # noqa: BLE001  cattrs raises many kinds, some of them Exception itself
        raise SpecError(f"{path} is not a profile", f"{_REMEDY} writes one") from None
    message = f"{path} is a profile of format {shown(found)}, and this petra-graph reads format {FORMAT}"
    raise SpecError(message, f"{_REMEDY} measures it again")
