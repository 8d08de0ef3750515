"""A run's directory, opened: the network that it trained, its weights, what its samples look like; and evaluated on data."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

import torch
from attrs import field, frozen
from torch import Tensor

from petra_graph.errors import Problem, SpecError
from petra_graph.executor.head import HeadResult, compare
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.network import MeasuredNetwork, measure
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.loss_and_metric import reads_logits
from petra_graph.plugins.tensor_trees import main, mapped
from petra_graph.record import checkpoint
from petra_graph.record.checkpoint import Damaged, best_cut
from petra_graph.record.recorded_run import LATEST, find_run
from petra_graph.record.run_directory import damaged, read_json
from petra_graph.record.weights import WEIGHTS, open_weights
from petra_graph.report.progress import NO_SCALES, Scales, numbers
from petra_graph.spec.load_spec import parse_override
from petra_graph.spec.model import Spec
from petra_graph.training.data import OpenedData
from petra_graph.training.evaluation import measure as measure_results
from petra_graph.training.identity import Fingerprint, outputs_of
from petra_graph.training.trained_network import Network, moved_to
from petra_graph.units import listed, plural

BEST = "best"
_COMPUTES_THE_SAME = {"run", "partition", "checkpoint", "name"}
"""Tables whose overrides leave what the network computes as it was."""


@frozen(kw_only=True)
class SavedRun:
    """A run whose network can be built."""

    directory: Path
    network: MeasuredNetwork
    facts: DataFacts
    trained: Fingerprint | None
    """What the training made of a few samples, which a run keeps."""
    changed_keys: Sequence[tuple[str, ...]]
    """Those that overrides have set."""
    changed: Sequence[str]
    """What the network computes otherwise than in the training, in words."""

    @classmethod
    def open(cls, run: str | Path, overrides: Iterable[str] = (), *, changed: bool = False) -> SavedRun:
        """Open a run by its directory, or the latest one as "latest", with `--set` assignments over what it was resolved to.

        Raises SpecError: there is no such run, an override is wrong, or it computes something else than in the training and `changed` is not set.
        """
        directory, overrides = find_run(str(run)), tuple(overrides)
        keys = [parse_override(text).keys for text in overrides]
        tables, facts = {first for first, *_ in keys}, read_json(directory / "data.json")
        listed_facts = {
            key: tuple(one) if isinstance(one, list) else one for key, one in facts.items()
        }  # JSON has no tuples
        try:
            stored = DataFacts(**listed_facts) if facts else None
        except (TypeError, ValueError) as error:
            raise damaged(directory / "data.json", error) from None
        # Modules of its own blocks may lie where its first specification did. Its own data need not be here: the facts are known.
        folders = read_json(directory / "env.json").get("folders", ())
        checked = check_spec(
            str(directory / "resolved.toml"), overrides, folders=folders, facts=None if "data" in tables else stored
        )
        network, known = measure(checked), stored or checked.facts
        trained, others = Fingerprint.read(directory), list[str]()
        if trained is not None and tables <= _COMPUTES_THE_SAME:
            others = trained.changes(trained.data, outputs_of(network, known, trained.samples)[0])
        if others and not changed:
            hint = "put back what has changed, or take the network as it is: --changed, in Python changed=True"
            said = [f"{directory} has changed since the training: {text}" for text in others]
            raise SpecError([Problem(message=text, hint=hint) for text in said])
        return cls(
            directory=directory, network=network, facts=known, trained=trained, changed_keys=keys, changed=others
        )

    @property
    def spec(self) -> Spec:
        return self.network.spec

    @property
    def gives_classes(self) -> bool:
        """Whether the network's outputs are [n, classes], of one class a sample."""
        outputs = self.network.shapes[self.network.graph.head].outputs
        return self.facts.classes is not None and not self.facts.target_shape and len(outputs[0]) == 1

    @property
    def gives_logits(self) -> bool:
        """Whether the network's outputs are logits of classes, whose softmax is a probability."""
        return reads_logits(self.network.checked.loss) and self.facts.classes is not None

    def load(self, which: str | Mapping[str, Tensor] | None = None) -> tuple[Network, str]:
        """Return the network with its weights, in evaluation mode on the CPU, and where the weights are from; SpecError: they are missing or damaged.

        They are those that the run ended with; a checkpoint's: "latest", "best", or the forward behind it; of a file, by its path from
        the run's directory or from here; or given by name.
        """
        weights, source = (which, "what was given") if isinstance(which, Mapping) else self._read_weights(which)
        network = Network(self.network, self.facts)
        network.load_weights(weights, source)
        return network.eval(), source

    def _read_weights(self, which: str | None) -> tuple[Mapping[str, Tensor], str]:
        directory, options, present = self.directory, self.spec.checkpoint, checkpoint.numbers(self.directory)
        if which == BEST and options.best is not None:
            best = best_cut(directory, options, self.network.checked.scales)
            cuts = [] if best is None else [best]
        else:
            cuts = [at for at in present if which in {None, LATEST, str(at)}]
        files = [directory / WEIGHTS]
        if which is not None:  # a checkpoint of that name goes before a file of it
            files = [] if cuts else [directory / which, Path(which).expanduser()]
        for file in filter(Path.is_file, files):
            with open_weights(file) as opened:
                return {name: opened.read(name) for name in opened.shapes}, str(file)
        for at in cuts:
            try:
                return checkpoint.read_weights(directory, at), str(checkpoint.folder_of(directory, at))
            except Damaged as damage:
                if which not in {None, LATEST}:
                    raise SpecError(f"the checkpoint before forward {at} is not used: {damage}") from None
        numbers = ", ".join(map(str, sorted(present))) or "it has none"
        raise SpecError(
            f"{directory} has no weights{'' if which is None else f' {which!r}'}",
            f"allowed: latest, the number of a checkpoint ({numbers}), best where [checkpoint] has `best`, or the path of a file",
        )


# --- evaluated ---


@frozen(kw_only=True)
class Evaluation:
    """Means over the samples of a split."""

    samples: int
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
        also = f"   undefined: {', '.join(self.undefined)}" if self.undefined else ""
        means = numbers(self.means, self.scales)
        return f"{self.split} {means}   {plural(self.samples, 'sample')}, weights of {self.weights}{also}"


def evaluate_run(run: SavedRun, *, which: str | None = None, split: str = "test", device: str = "cpu") -> Evaluation:
    """Evaluate a run's network on all samples of a split of its data, or of that which an override names; SpecError: they are not the network's.

    On the run's own device type, with its threads and evaluation batch, the means are those of the run, to the bit.
    """
    network, source = run.load(which)
    spec, checked, trained = run.spec, run.network.checked, run.trained
    if any(keys[0] == "data" or keys == ("run", "seed") for keys in run.changed_keys):
        trained = None  # other samples are meant, or others were held back
    # The training's samples, with which these are compared, are those that its validation left.
    data = open_data(run, validation=trained is not None or split != "test")
    whole = {"train": data.train, "validation": data.validation, "test": data.test}[split]
    if whole is None:
        raise SpecError("the run has no validation samples: its specification has no data.validation")
    batches, loss = data.evaluation(whole), checked.loss.build()
    network = moved_to(device, network)

    def results() -> Generator[HeadResult]:
        at_work = nullcontext() if data.loaders is None else closing(data.loaders)
        with torch.no_grad(), at_work, closing(iter(batches)) as read:
            for samples, targets in read:
                output = network(mapped(lambda one: one.to(device), samples))
                result, beside = compare(loss, output, targets)
                yield result._replace(metrics=loss.metrics(output, beside), compared=(main(output), beside))

    torch.set_num_threads(spec.run.threads)
    with closing(results()) as computed:
        found = measure_results(computed, checked.metrics, f"{split} data")
    changed = [*run.changed]
    if trained is not None:
        # What is of another network, or of overrides, has been told; the loss is that of the same outputs.
        data_now, outputs, value = Fingerprint.of(run.network, data).found
        changed += trained.changes(data_now, None if run.changed or run.changed_keys else outputs, value)
    return Evaluation(
        samples=found.samples,
        means=found.means,
        weights=source,
        split=split,
        undefined=[f"{name} is {value}" for name, value in found.undefined.items()],
        changed=changed,
        scales=checked.scales,
    )


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
