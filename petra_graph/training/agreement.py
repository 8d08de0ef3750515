"""The check that all processes of a run have prepared the same run."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch

from petra_graph.errors import Problem, SpecError
from petra_graph.runtime.control.store import RunStore
from petra_graph.spec.load import dump
from petra_graph.training.prepare import Prepared
from petra_graph.training.resolve import resolved

_SECONDS = 300.0


def agree(store: RunStore, rank: int, prepared: Prepared) -> None:
    """Compare the run of this process with that of rank 0.

    Raises:
        SpecError: another specification, other data, or another version of torch.
    """
    own = _decisive(prepared)
    if rank == 0:
        store.set("run", own)
        return
    first = store.wait("run", _SECONDS, "rank 0 has not published its run")
    differences = [
        f"{name}: {own.get(name, 'nothing')} here, {first.get(name, 'nothing')} on rank 0"
        for name in dict.fromkeys([*own, *first])
        if own.get(name) != first.get(name)
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
    """Return everything that the bits depend on, as text by name; the folder of the results may differ."""
    spec = resolved(prepared)
    text = dump(attrs.evolve(spec, run=attrs.evolve(spec.run, directory="runs")))
    lines = {
        "torch": torch.__version__,
        "the process of each stage": str(prepared.ranks),
        "samples": f"{len(prepared.data.train)} + {len(prepared.data.test)}",
    }
    table = ""
    for line in text.splitlines():
        table = line if line.startswith("[") else table
        key, _, value = line.partition(" = ")
        name = f"{table} {key}".strip()
        lines[name] = f"{lines[name]} | {value}" if name in lines else value or key
    return lines
