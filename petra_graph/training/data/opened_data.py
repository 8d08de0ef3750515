"""The data set of a run, opened and cut into micro-batches."""

from __future__ import annotations

from typing import NamedTuple

from attrs import evolve

from petra_graph.executor.update import horizon
from petra_graph.planning.checked_spec import CheckedSpec
from petra_graph.registry.contracts import Horizon
from petra_graph.training.checked_data import CheckedData
from petra_graph.training.data.micro_batches import Loaders, MicroBatches


class OpenedData(NamedTuple):
    """What a run reads, and how long it is."""

    data: CheckedData
    batches: MicroBatches
    micro_batches: int
    """Of an epoch over all training data."""
    horizon: Horizon


def open_data(checked: CheckedSpec) -> OpenedData:
    """Open the data set of a specification.

    Raises:
        SpecError: its files are not there.
        PluginError: it cannot be opened, or breaks its contract.
    """
    spec = checked.spec
    data = CheckedData.of(str(checked.data.plugin), checked.data.build())
    batches = MicroBatches(
        split=data.train,
        batch=spec.data.batch,
        seed=spec.run.seed,
        epoch=0,
        shuffle=True,
        drop_last=True,
        replicas=spec.partition.replicas,
    )
    every, batches = len(batches), evolve(batches, limit=spec.run.micro_batches)
    if spec.run.overfit:
        batches = batches.repeated()
    if spec.data.workers:
        batches = evolve(batches, loaders=Loaders(spec.data.workers, (batches.split, data.test)))
    return OpenedData(data, batches, every, horizon(spec, len(batches)))
