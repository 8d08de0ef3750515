"""What all processes of a run must have in common before they train."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch

from petra_graph.errors import Problem, SpecError
from petra_graph.runtime.control.store import RunStore
from petra_graph.spec.dump import dump
from petra_graph.training.prepare import Prepared
from petra_graph.training.resolve import resolved

_SECONDS = 300.0


def agree(store: RunStore, rank: int, prepared: Prepared) -> None:
    """Compare what this process is about to run with rank 0.

    Raises:
        SpecError: another specification, other data, or another version of torch.
    """
    own = _decisive(prepared)
    if rank == 0:
        store.set("run", own)
        return
    theirs = store.wait("run", _SECONDS, "rank 0 has not said what it runs")
    differences = [
        f"{name}: {own.get(name, 'nothing')} here, {theirs.get(name, 'nothing')} on rank 0"
        for name in dict.fromkeys([*own, *theirs])
        if own.get(name) != theirs.get(name)
    ]
    if differences:
        raise SpecError(
            [
                Problem(message=f"rank {rank} and rank 0 run different things: {difference}", hint=_HINT)
                for difference in differences[:3]
            ]
        )


_HINT = "start the same specification, overrides and versions on every machine"


def _decisive(prepared: Prepared) -> Mapping[str, str]:
    """Return what decides the bits, in lines that can be compared; where results go may differ."""
    spec = resolved(prepared)
    text = dump(attrs.evolve(spec, run=attrs.evolve(spec.run, directory="runs")))
    found = {
        "torch": torch.__version__,
        "the process of each stage": str(prepared.compiled.ranks),
        "samples": f"{len(prepared.data.train)} + {len(prepared.data.test)}",
    }
    table = ""
    for line in text.splitlines():
        table = line if line.startswith("[") else table
        key, _, value = line.partition(" = ")
        name = f"{table} {key}".strip()
        found[name] = f"{found[name]} | {value}" if name in found else value or key
    return found
