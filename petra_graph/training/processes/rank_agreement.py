"""Agreement: before any training, every process compares its run with that of rank 0.

Everything that the bits depend on is compared: the specification with all decisions, the versions of the libraries and of
the plugins, the code without a package, and the data (`digests`).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import file_digest, sha256
from importlib.metadata import version

import attrs

from petra_graph.errors import Problem, SpecError
from petra_graph.runtime.control.world import World
from petra_graph.spec.value_types import as_mapping, flat
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.record.resolved_spec import resolved

_SHOWN = 12
"""The number of digits that are kept of a digest."""
LIBRARIES = ("petra-graph", "torch", "numpy")
"""The libraries on whose versions the bits depend."""


def agree(world: World, prepared: Prepared) -> None:
    """Refuse a run whose specification, data, or versions of libraries or plugins are not those of rank 0."""
    own, rank = _decisive(prepared), world.rank
    if rank == 0:
        world.store.set("run", own)
        return
    first = world.wait("run")
    differences = [
        f"{name}: {own.get(name, 'nothing')} here, {first.get(name, 'nothing')} on rank 0"
        for name in dict.fromkeys([*own, *first])
        if own.get(name) != first.get(name)
    ]
    if differences:
        message, hint = (
            f"rank {rank} and rank 0 run different things: ",
            "start the same specification, overrides and versions on every machine",
        )
        raise SpecError([Problem(message=message + difference, hint=hint) for difference in differences[:3]])


def _decisive(prepared: Prepared) -> Mapping[str, str]:
    """Return everything that the bits depend on, as text by name; the folder of the results may differ."""
    spec = resolved(prepared)
    return {
        **{f"{name}'s version": version(name) for name in LIBRARIES},
        **prepared.digests,
        **_weights(prepared),
        "the process of each stage": str(prepared.ranks),
        **dict(flat(as_mapping(attrs.evolve(spec, run=attrs.evolve(spec.run, directory="runs"))))),
    }


def _weights(prepared: Prepared) -> dict[str, str]:
    if prepared.initial is None:
        return {}
    begun, digest = prepared.initial.file, sha256()
    for path in sorted(begun.iterdir()) if begun.is_dir() else [begun]:
        if path.is_file():
            with path.open("rb") as file:
                digest.update(file_digest(file, "sha256").digest())
    return {"the weights to begin with": digest.hexdigest()[:_SHOWN]}
