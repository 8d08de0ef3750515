"""Agreement: before any training, every process compares its run with that of rank 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch

from petra_graph.errors import Problem, SpecError, shown
from petra_graph.runtime.control.store import RunStore
from petra_graph.spec.schema import as_mapping
from petra_graph.training.prepare import Prepared
from petra_graph.training.resolve import resolved

_AGREEMENT_SECONDS = 300.0


def agree(store: RunStore, rank: int, prepared: Prepared) -> None:
    """Compare the run of this process with that of rank 0.

    Raises:
        SpecError: another specification, other data, or another version of torch.
    """
    own = _decisive(prepared)
    if rank == 0:
        store.set("run", own)
        return
    first = store.wait("run", _AGREEMENT_SECONDS, "rank 0 has not published its run")
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
        "torch": torch.__version__,
        "the process of each stage": str(prepared.ranks),
        "samples": f"{len(prepared.data.train)} + {len(prepared.data.test)}",
        **dict(_values(as_mapping(attrs.evolve(spec, run=attrs.evolve(spec.run, directory="runs"))))),
    }


def _values(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of nested tables with their values."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = dict(enumerate(value, start=1))
    if not isinstance(value, dict):
        yield name, shown(value)
        return
    for key, item in value.items():
        yield from _values(item, f"{name}.{key}" if name else key)
