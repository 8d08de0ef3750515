"""A saved run on data: loss and metrics, as an evaluation of the run would give them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from petra_graph.errors import SpecError
from petra_graph.executor.head import HeadResult, compare
from petra_graph.inference.saved_run import SavedRun
from petra_graph.plugins.tensor_trees import main, mapped
from petra_graph.report.progress import NO_SCALES, Scales, numbers
from petra_graph.training.data import OpenedData
from petra_graph.training.evaluation import measure
from petra_graph.training.identity import Fingerprint
from petra_graph.training.trained_network import computing_on
from petra_graph.units import listed, noun

_LISTED = 6


@frozen(kw_only=True)
class Evaluation:
    """Means over the samples of a split."""

    samples: int
    of: int
    """The samples of the whole split."""
    means: Mapping[str, float]
    """The loss, its metrics as shares of the samples, and the values of the run's metrics."""
    weights: str
    """The file that the weights are from."""
    split: str
    undefined: Sequence[str]
    """The values of metrics that are not finite, as in "auc is nan"; the means are without them."""
    changed: Sequence[str]
    """What of the code and of the run's own data is not as it was in the training."""
    scales: Scales = field(default=NO_SCALES, repr=False)
    """How the means are read."""

    def __str__(self) -> str:
        count = f"{self.samples:,}" if self.samples == self.of else f"{self.samples:,} of {self.of:,}"
        also = f"   undefined: {', '.join(self.undefined)}" if self.undefined else ""
        means = numbers(self.means, self.scales)
        return f"{self.split} {means}   {count} {noun(self.of, 'sample')}, weights of {self.weights}{also}"


def evaluate_run(run: SavedRun, *, which: str | None = None, split: str = "test", device: str = "cpu") -> Evaluation:
    """Evaluate a run's network on its data, or on that which an override names.

    On the run's own device type, with its threads and evaluation batch, the means are those of the run, to the bit. Where the run
    evaluated a part of the data (`run.evaluation_batches`), these are of all of it, unless an override names that key. Training samples
    come in their order, augmented as in the first epoch.

    Raises:
        SpecError: the data is missing, or its samples or classes are not the network's.
        RunFailed: the network cannot be run, or a sample cannot be read.
    """
    network, source = run.load(which)
    data, spec, checked = open_data(run, validation=split != "test"), run.spec, run.network.checked
    whole = {"train": data.train, "validation": data.validation, "test": data.test}[split]
    if whole is None:
        reason = "the run has no validation samples: its specification has no data.validation"
        raise SpecError(reason, "evaluate the test data")
    most = spec.run.evaluation_batches if ("run", "evaluation_batches") in run.changed_keys else None
    batches = data.evaluation(whole, most)
    loss, renumbered = checked.loss.build(), _match_classes(run.facts.class_names, data.facts.class_names)

    def results() -> Generator[HeadResult]:
        at_work = nullcontext() if data.loaders is None else closing(data.loaders)
        with computing_on(network, device), at_work, closing(iter(batches)) as read:
            for samples, targets in read:
                output = network(mapped(lambda one: one.to(device), samples))
                result, beside = compare(loss, output, renumbered(targets))
                yield result._replace(metrics=loss.metrics(output, beside), compared=(main(output), beside))

    torch.set_num_threads(spec.run.threads)
    with closing(results()) as computed:
        found = measure(computed, checked.metrics, f"{split} data")
    changed = [*run.changed]
    if run.trained is not None and not any(keys[0] == "data" for keys in run.changed_keys):
        changed += run.trained.changes(Fingerprint.of(run.network, data, computes=False).values)
    return Evaluation(
        samples=found.samples,
        of=len(whole),
        means=found.means,
        weights=source,
        split=split,
        undefined=[f"{name} is {value}" for name, value in found.undefined.items()],
        changed=changed,
        scales=checked.scales,
    )


def open_data(run: SavedRun, *, validation: bool = False) -> OpenedData:
    """Open a run's data set, whose samples are checked as in training; with `validation`, as the run has parted them.

    Raises:
        SpecError: it is missing, or its samples are not those that the network reads.
    """
    changed = {("data", "validation"), ("run", "seed")}.intersection(run.changed_keys)
    if validation and isinstance(run.spec.data.validation, float) and changed:
        keys = " and ".join(sorted(".".join(one) for one in changed))
        raise SpecError("a run's validation samples are those that it did not train on", f"leave out --set {keys}")
    data = OpenedData.open(run.network.checked, parted=validation)
    if data.facts.inputs != run.facts.inputs:
        own, other = (
            ", ".join(f"{name} {dtype} {list(shape)}".lstrip() for name, (shape, dtype) in facts.inputs.items())
            for facts in (run.facts, data.facts)
        )
        reason = f"the run's network reads samples {own}, and the data has {other}"
        raise SpecError(reason, "name the data that the run was trained on, or other data of that shape")
    return data


def _match_classes(own: Sequence[str] | None, names: Sequence[str] | None) -> Callable[[Any], Any]:
    """Return a function from targets of the data to the network's: the same where classes are alike, or one of them has no names.

    Raises:
        SpecError: they are other classes.
    """
    if own is None or names is None or tuple(own) == tuple(names):
        return lambda targets: targets
    if sorted(own) != sorted(names):
        reason = f"the run's classes are {listed(own, _LISTED)}, and those of the data {listed(names, _LISTED)}"
        raise SpecError(reason, "name the classes of the data as those of the run, in any order")
    numbers = torch.tensor([own.index(name) for name in names])

    def renumbered(targets: Tensor) -> Tensor:
        return numbers[targets.clamp(min=0)].where(targets >= 0, targets)  # targets below zero are passed over

    return renumbered
