"""Profiles as files, and whether one is of the network, the settings and the device that are planned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import asdict

from petra_graph.errors import Problem, SpecError, at_path, shown
from petra_graph.program.device_types import DeviceType
from petra_graph.program.node_costs import CostTable, Profile
from petra_graph.record.run_directory import environment, write_output
from petra_graph.spec.model import Spec

FORMAT = 4
_REMEDY = "`petra-graph profile SPEC --output FILE`"
_PATH = ("partition", "profile")


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile, with the environment that it was measured in; raise RunFailed if the disk refuses."""
    values = {"format": FORMAT, **asdict(profile), "environment": environment()}
    write_output(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def _read(path: Path) -> Profile:
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


def checked_profile(spec: Spec, costs: CostTable, settings: Mapping[str, Any], device: DeviceType) -> Profile | None:
    """Read the profile that a specification names; None where it names none.

    `settings` are those of `MeasuredNetwork`, `device` is the type of the first one. SpecError: the profile cannot be read, or is of something else.
    """
    if spec.partition.profile is None:
        return None
    with at_path(*_PATH):
        profile = _read(Path(spec.partition.profile).expanduser())
    compared: dict[str, tuple[Any, Any]] = {
        "micro-batches of": (profile.micro_batch, spec.data.batch),
        "run.threads =": (profile.threads, spec.run.threads),
        "a device of kind": (profile.kind, device.kind),
    }
    if profile.kind == device.kind:
        compared["a device of type"] = profile.device_type, device.name
    for table in dict.fromkeys((*settings, *profile.settings)):
        compared[f"[{table}] ="] = profile.settings.get(table), settings.get(table)
    said = [
        f"the profile is of {what} {shown(one)}, not {shown(own)}"
        for what, (one, own) in compared.items()
        if one != own
    ]
    for name, cost in costs.nodes.items():
        if name not in profile.nodes:
            said.append(f"the profile has no node {shown(name)}")
        elif profile.sizes.get(name) != (cost.parameters, sum(cost.output_bytes)):
            said.append(f"the profile's node {shown(name)} has other sizes than the network's")
    if said:
        hint = "take one of this specification, on such a device: petra-graph profile SPEC"
        raise SpecError(Problem(message=text, hint=hint, path=_PATH) for text in said)
    return profile
