"""The data set of a run, opened and cut into micro-batches."""

from __future__ import annotations

from attrs import evolve, frozen

from petra_graph.executor.stage_update import horizon
from petra_graph.kinds.checked_samples import CheckedData
from petra_graph.kinds.lr_schedule import Horizon
from petra_graph.planning.check.checked_spec import CheckedSpec
from petra_graph.spec.model import Spec
from petra_graph.training.data.micro_batches import Loaders, MicroBatches, Part, spread_part


@frozen(kw_only=True)
class OpenedData:
    """What a run reads, and how long it is."""

    data: CheckedData
    batches: MicroBatches
    """Micro-batches of the first training epoch: the part that this process reads, of its own replica's rows."""
    test: MicroBatches
    """Micro-batches of an evaluation: every sample, or some that are spread over all, in order."""
    tested: str
    """The samples that an evaluation reads, in words, where it does not read all; "": all."""
    micro_batches: int
    """The number of micro-batches in an epoch over all training data."""
    horizon: Horizon

    def epoch(self, number: int) -> MicroBatches:
        return evolve(self.batches, epoch=number)

    def under(self, spec: Spec) -> OpenedData:
        """Return the same data in a run of another specification, which may make other updates of it."""
        return evolve(self, horizon=horizon(spec, len(self.batches)))

    def read_in_part(self, part: Part, replica: int) -> OpenedData:
        """Return what one of several processes reads."""
        batches = evolve(self.batches, part=part, replica=replica)
        return evolve(self, batches=batches, test=evolve(self.test, part=part))


def open_data(checked: CheckedSpec) -> OpenedData:
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
    whole = batches.split if spec.run.overfit else data.test
    part = spread_part(whole, spec.run.evaluation_batches, spec.data.test_batch)
    test = evolve(
        batches, split=part, limit=None, batch=spec.data.test_batch, shuffle=False, drop_last=False, replicas=1
    )
    return OpenedData(
        data=data,
        batches=batches,
        test=test,
        tested=f"{len(part):,} of {len(whole):,} samples" if len(part) < len(whole) else "",
        micro_batches=every,
        horizon=horizon(spec, len(batches)),
    )
