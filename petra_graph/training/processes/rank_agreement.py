"""Agreement: before any training, every process compares its run with that of rank 0.

Everything that the bits depend on is compared: the specification with all decisions, the versions of the libraries and of
the plugins, the code of blocks without a package, and the contents of a few samples.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from hashlib import file_digest, sha256
from importlib.metadata import version
from pathlib import Path

import attrs
import numpy as np
import torch

from petra_graph.errors import Problem, SpecError
from petra_graph.kinds.data_set import Split
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.runtime.control.world import World
from petra_graph.spec.value_types import as_mapping, flat
from petra_graph.training.prepared_run import Prepared
from petra_graph.training.record.resolved_spec import resolved

_SHOWN = 12
"""The number of digits that are kept of a digest."""
LIBRARIES = ("petra-graph", "torch", "torchvision", "numpy")
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
    data = prepared.opened.data
    return {
        **{f"{name}'s version": version(name) for name in LIBRARIES},
        **dict(_code_of_plugins(prepared.checked)),
        **_weights(prepared),
        "the process of each stage": str(prepared.ranks),
        "samples": f"{len(data.train)} + {len(data.test)}",
        "the contents of some samples": _digest(data.train, spec.run.seed) + _digest(data.test, spec.run.seed),
        **dict(flat(as_mapping(attrs.evolve(spec, run=attrs.evolve(spec.run, directory="runs"))))),
    }


def _code_of_plugins(checked: CheckedSpec) -> Iterator[tuple[str, str]]:
    """Yield the version of each plugin's distribution, and the digest of each module with a block of no distribution."""
    configured = (
        checked.loss,
        checked.optimizer,
        checked.lr_schedule,
        checked.data,
        *checked.callbacks,
        *checked.metrics,
    )
    plugins = [one.plugin for one in configured]
    plugins += [node.plugin for node in checked.graph.nodes.values() if node.plugin is not None]
    for plugin in plugins:
        if plugin.distribution:
            yield f"{plugin.distribution}'s version", version(plugin.distribution)
            continue
        module = sys.modules.get(plugin.name.partition(":")[0])
        if module is not None and module.__file__ is not None:
            content = Path(module.__file__).read_bytes()
            yield f"the code of {module.__name__}", sha256(content).hexdigest()[:_SHOWN]


def _weights(prepared: Prepared) -> dict[str, str]:
    if prepared.initial is None:
        return {}
    begun, digest = prepared.initial.file, sha256()
    for path in sorted(begun.iterdir()) if begun.is_dir() else [begun]:
        if path.is_file():
            with path.open("rb") as file:
                digest.update(file_digest(file, "sha256").digest())
    return {"the weights to begin with": digest.hexdigest()[:_SHOWN]}


def _digest(split: Split, seed: int) -> str:
    """Return the digest of a split's first, middle and last sample, as the first epoch has them."""
    indices = np.unique(np.array([0, len(split) // 2, len(split) - 1], np.intp))
    samples, targets = split.fetch(indices, seed=seed, epoch=0)
    digest = sha256()
    for tensor in (samples, targets):
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:_SHOWN]
