"""A run's directory, opened: the network that it trained, its weights, and what its samples look like.

resolved.toml   the network and the data set
data.json       the samples' shape, type, normalisation and classes, as the opened data set stated them
fingerprint.pt  what the network made of a few samples, which is compared
weights         weights.safetensors; of a run that was killed, its latest checkpoint that is whole
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import frozen
from torch import Tensor

from petra_graph.errors import Problem, SpecError
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.network import MeasuredNetwork, measure
from petra_graph.plugins.data_set import DataFacts, facts_fault
from petra_graph.plugins.loss_and_metric import reads_logits
from petra_graph.record import checkpoint
from petra_graph.record.checkpoint import Damaged, best_cut
from petra_graph.record.recorded_run import LATEST, find_run
from petra_graph.record.run_directory import damaged, first_folders, read_json
from petra_graph.record.weights import WEIGHTS, open_weights
from petra_graph.spec.load_spec import parse_override
from petra_graph.spec.model import Spec
from petra_graph.training.identity import Fingerprint
from petra_graph.training.trained_network import Network

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
        """Open a run by its directory, or the latest one in the folder `runs` as "latest".

        Args:
            overrides: `--set` assignments, over what the run was resolved to.
            changed: also where its network computes something else than in the training.

        Raises:
            SpecError: there is no such run, or it or an override is wrong, or it has changed.
            PluginError: a plugin of the run is no longer installed, or is at fault.
        """
        directory, overrides = find_run(str(run)), tuple(overrides)
        resolved = directory / "resolved.toml"
        if not resolved.is_file():
            raise SpecError(f"{directory} has no resolved.toml", "give the directory of a run that has begun to train")
        keys = [parse_override(text).keys for text in overrides]
        tables, stored = {first for first, *_ in keys}, _read_facts(directory / "data.json")
        # Of the run's own data the facts are known: it need not be here, which a torch Dataset would have to be.
        known = None if "data" in tables else stored
        checked = check_spec(str(resolved), overrides, folders=first_folders(directory), facts=known)
        network, facts = measure(checked), stored or checked.facts
        trained, others = Fingerprint.read(directory), list[str]()
        if trained is not None and tables <= _COMPUTES_THE_SAME:
            again = Fingerprint.of_samples(network, facts, trained.samples, trained.targets)
            others = trained.changes(again.values)
        if others and not changed:
            hint = "put back what has changed, or take the network as it is: --changed, in Python changed=True"
            said = [f"{directory} has changed since the training: {text}" for text in others]
            raise SpecError([Problem(message=text, hint=hint) for text in said])
        return cls(
            directory=directory, network=network, facts=facts, trained=trained, changed_keys=keys, changed=others
        )

    @property
    def spec(self) -> Spec:
        return self.network.spec

    @property
    def gives_classes(self) -> bool:
        """Whether the network's outputs are [n, classes, *target_shape]."""
        output = self.network.shapes[self.network.graph.head].outputs[0]
        return self.facts.classes is not None and tuple(output[1:]) == self.facts.target_shape

    @property
    def gives_logits(self) -> bool:
        """Whether the network's outputs are logits of classes, whose softmax is a probability."""
        return reads_logits(self.network.checked.loss) and self.facts.classes is not None

    def load(self, which: str | Mapping[str, Tensor] | None = None) -> tuple[Network, str]:
        """Return the network with its weights, in evaluation mode on the CPU, and where the weights are from.

        Args:
            which: None: those that the run ended with; a checkpoint's: "latest", "best", or the forward behind it; or the path of a
                file of weights, from the run's directory or from here; or the weights themselves, by name.

        Raises:
            SpecError: there are none, they are damaged, or they are of another network.
        """
        weights, source = (which, "what was given") if isinstance(which, Mapping) else self._read_weights(which)
        network = Network.of(self.network, self.facts)
        network.load_weights(weights, source)
        return network.eval(), source

    def _read_weights(self, which: str | None) -> tuple[Mapping[str, Tensor], str]:
        numbers, keeps_best = checkpoint.numbers(self.directory), self.spec.checkpoint.best is not None
        if which == BEST and keeps_best:
            best = best_cut(self.directory, self.spec.checkpoint, self.network.checked.scales)
            cuts = [] if best is None else [best]
        else:
            cuts = [at for at in numbers if which in {None, LATEST, str(at)}]
        if which is None:
            files = [self.directory / WEIGHTS]
        else:  # a checkpoint of that name goes before a file of it
            files = [] if cuts else [self.directory / which, Path(which).expanduser()]
        for file in filter(Path.is_file, files):
            with open_weights(file) as opened:
                return {name: opened.read(name) for name in opened.shapes}, str(file)
        for at in cuts:
            try:
                return checkpoint.read_weights(self.directory, at), str(checkpoint.folder_of(self.directory, at))
            except Damaged as damage:
                if which not in {None, LATEST}:
                    raise SpecError(f"the checkpoint before forward {at} is not used: {damage}") from None
        why = ": its [checkpoint] has no `best`" if which == BEST and not keeps_best else ""
        raise SpecError(
            f"{self.directory} has no weights{'' if which is None else f' {which!r}'}{why}",
            f"allowed: {f'{BEST}, ' if keeps_best else ''}latest, or the number of a checkpoint "
            f"({', '.join(map(str, sorted(numbers))) or 'it has none'}), or the path of a file; default: those at the run's end",
        )


def _read_facts(path: Path) -> DataFacts | None:
    """Return the facts of the data that the run was trained on; None if it wrote none."""
    stored = read_json(path) or None
    try:  # JSON has lists for tuples
        facts = stored and DataFacts(
            **{key: tuple(one) if isinstance(one, list) else one for key, one in stored.items()}
        )
    except TypeError as error:
        raise damaged(path, error) from None
    if facts is not None and (fault := facts_fault(facts)):
        raise damaged(path, ValueError(f"its facts {fault}"))
    return facts
