"""A run's directory, opened: the network that it trained, its weights, what its samples look like; and evaluated on data."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from petra_graph.errors import SpecError
from petra_graph.executor.head import HeadResult, compare
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.network import MeasuredNetwork, measure
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.loss_and_metric import Scale
from petra_graph.plugins.tensor_trees import main, mapped
from petra_graph.record import checkpoint
from petra_graph.record.checkpoint import Damaged, best_cut
from petra_graph.record.run_directory import LATEST, damaged, find_run, read_json
from petra_graph.record.weights import WEIGHTS, open_weights
from petra_graph.report.progress import numbers
from petra_graph.spec.load_spec import parse_override
from petra_graph.spec.model import Spec
from petra_graph.training.data import OpenedData
from petra_graph.training.evaluation import measure as measure_results
from petra_graph.training.identity import Fingerprint, outputs_of
from petra_graph.training.trained_network import Network
from petra_graph.units import listed, plural

BEST = "best"
# Tables whose overrides leave what the network computes as it was.
_COMPUTES_THE_SAME = {"run", "partition", "checkpoint", "name"}


@frozen(kw_only=True)
class SavedRun:
    """A run whose network can be built."""

    directory: Path
    network: MeasuredNetwork
    facts: DataFacts
    trained: Fingerprint | None  # what the training made of a few samples, which a run keeps
    changed_keys: Sequence[tuple[str, ...]]  # those that overrides have set
    changed: Sequence[str]  # what the network computes otherwise than in the training, in words

    @classmethod
    def open(cls, run: str | Path, overrides: Iterable[str] = (), *, changed: bool = False) -> SavedRun:
        """Open a run by its directory, or the latest one as "latest", with `--set` assignments over what it was resolved to.

        Raises SpecError: there is no such run, an override is wrong, or it computes something else than in the training and `changed` is not set.
        """
        directory, overrides = find_run(str(run)), tuple(overrides)
        keys = [parse_override(text).keys for text in overrides]
        tables, given = {first for first, *_ in keys}, read_json(directory / "data.json")
        try:  # JSON has no tuples
            given = {key: tuple(one) if isinstance(one, list) else one for key, one in given.items()}
            stored = DataFacts(**given) if given else None
        except (TypeError, RuntimeError) as error:
            raise damaged(directory / "data.json", error) from None
        # Modules of its own blocks may lie where its first specification did. Its own data need not be here: the facts are known.
        folders = read_json(directory / "env.json").get("folders", ())
        known = None if "data" in tables else stored
        checked = check_spec(str(directory / "resolved.toml"), overrides, folders=folders, facts=known)
        network, facts = measure(checked), stored or checked.facts
        trained, others = Fingerprint.read(directory), list[str]()
        if trained is not None and tables <= _COMPUTES_THE_SAME:
            others = trained.changes(trained.data, outputs_of(network, facts, trained.samples)[0])
        if others and not changed:
            hint = "put back what has changed, or take the network as it is: --changed, in Python changed=True"
            raise SpecError(f"{directory} has changed since the training: {others[0]}", hint)
        of_training: dict[str, Any] = {"trained": trained, "changed_keys": keys, "changed": others}
        return cls(directory=directory, network=network, facts=facts, **of_training)

    @property
    def spec(self) -> Spec:
        return self.network.spec

    def load(self, which: str | Mapping[str, Tensor] | None = None, device: str = "cpu") -> tuple[Network, str]:
        """Return the network with its weights, in evaluation mode, and where they are from; SpecError: they are missing or damaged, or it cannot be on the device.

        They are those that the run ended with; a checkpoint's: "latest", "best", or the forward behind it; of a file, by its path from
        the run's directory or from here; or given by name.
        """
        weights, source = (which, "what was given") if isinstance(which, Mapping) else self._read_weights(which)
        network = Network(self.network, self.facts)
        network.load_weights(weights, source)
        try:
            return network.eval().to(device), source
        except (RuntimeError, AssertionError) as error:  # of a torch without CUDA
            raise SpecError(f"cannot compute on {device!r}: {str(error).partition(chr(10))[0]}") from None

    def _read_weights(self, which: str | None) -> tuple[Mapping[str, Tensor], str]:
        directory, options, present = self.directory, self.spec.checkpoint, checkpoint.numbers(self.directory)
        cuts: list[int | None] = [at for at in present if which in {None, LATEST, str(at)}]
        if which == BEST and options.best is not None:
            cuts = [best_cut(directory, options, self.network.checked.scales)]
        files = [directory / WEIGHTS]
        if which is not None:  # a checkpoint of that name goes before a file of it
            files = [] if any(cuts) else [directory / which, Path(which).expanduser()]
        for file in filter(Path.is_file, files):
            with open_weights(file) as opened:
                return {name: opened.read(name) for name in opened.shapes}, str(file)
        for at in filter(None, cuts):
            try:
                return checkpoint.read_weights(directory, at), str(checkpoint.folder_of(directory, at))
            except Damaged:
                if which not in {None, LATEST}:
                    raise
        numbers = ", ".join(map(str, sorted(present))) or "it has none"
        allowed = f"allowed: latest, the number of a checkpoint ({numbers}), best where [checkpoint] has `best`, or a file's path"
        raise SpecError(f"{directory} has no weights{'' if which is None else f' {which!r}'}", allowed)


# --- evaluated ---


@frozen(kw_only=True)
class Evaluation:
    """Means over the samples of a split."""

    samples: int
    means: Mapping[str, float]  # the loss, its metrics as shares of the samples, and the values of the run's metrics
    weights: str  # the file that they are from
    split: str
    undefined: Sequence[str]  # as in "auc is nan": the values that are not finite, and not among the means
    changed: Sequence[str]  # what of the code and of the run's own data is not as it was in the training
    scales: Mapping[str, Scale] = field(factory=dict, repr=False)  # how the means are read

    def __str__(self) -> str:
        also = f"   undefined: {', '.join(self.undefined)}" if self.undefined else ""
        means = numbers(self.means, self.scales)
        return f"{self.split} {means}   {plural(self.samples, 'sample')}, weights of {self.weights}{also}"


def evaluate_run(run: SavedRun, *, which: str | None = None, split: str = "test", device: str = "cpu") -> Evaluation:
    """Evaluate a run's network on all samples of a split of its data, or of that which an override names; SpecError: they are not the network's.

    On the run's own device type, with its threads and evaluation batch, the means are those of the run, to the bit.
    """
    network, source = run.load(which, device)
    spec, checked, trained = run.spec, run.network.checked, run.trained
    if any(keys[0] == "data" or keys == ("run", "seed") for keys in run.changed_keys):
        trained = None  # other samples are meant, or others were held back
    # The training's samples, with which these are compared, are those that its validation left.
    data = open_data(run, validation=trained is not None or split != "test")
    if (whole := {"train": data.train, "validation": data.validation, "test": data.test}.get(split)) is None:
        hint = "allowed: test, train, and validation where data.validation is set"
        raise SpecError(f"the run has no {split} samples", hint)
    batches, loss = data.evaluation(whole), checked.loss.build()

    def results() -> Generator[HeadResult]:
        with torch.no_grad(), closing(data.loaders), closing(iter(batches)) as read:
            for samples, targets in read:
                output = network(mapped(lambda one: one.to(device), samples))
                result, beside = compare(loss, output, targets)
                yield result._replace(metrics=loss.metrics(output, beside), compared=(main(output), beside))

    torch.set_num_threads(spec.run.threads)
    with closing(results()) as computed:
        found = measure_results(computed, checked.metrics, f"{split} data")
    changed, undefined = [*run.changed], [f"{name} is {value}" for name, value in found.undefined.items()]
    if trained is not None:
        # What is of another network, or of overrides, has been told; the loss is that of the same outputs.
        data_now, outputs, value = Fingerprint.of(run.network, data).found
        changed += trained.changes(data_now, None if run.changed or run.changed_keys else outputs, value)
    of_run: dict[str, Any] = {"weights": source, "split": split, "changed": changed, "scales": checked.scales}
    return Evaluation(samples=found.samples, means=found.means, undefined=undefined, **of_run)


def open_data(run: SavedRun, *, validation: bool = False) -> OpenedData:
    """Open a run's data set; with `validation`, as the run has parted it. SpecError: it is missing, or its samples are not those that the network reads."""
    changed = {("data", "validation"), ("run", "seed")}.intersection(run.changed_keys)
    if validation and isinstance(run.spec.data.validation, float) and changed:
        keys = " and ".join(sorted(".".join(one) for one in changed))
        raise SpecError("a run's validation samples are those that it did not train on", f"leave out --set {keys}")
    data = OpenedData.open(run.network.checked, parted=validation)
    if data.facts.inputs != run.facts.inputs:
        raise SpecError(f"the run's network reads samples {run.facts.inputs}, and the data has {data.facts.inputs}")
    own, names = run.facts.class_names, data.facts.class_names
    if own and names and tuple(own) != tuple(names):
        raise SpecError(f"the run's classes are {listed(own)}, and those of the data {listed(names)}, in this order")
    return data
