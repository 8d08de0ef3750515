"""A run's directory, opened: the network that it trained, its weights, what its samples look like; evaluated on data, asked, and continued."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from petra_graph.errors import SpecError
from petra_graph.executor.head import HeadResult, compare
from petra_graph.image_files import SUFFIXES, decode, resize_and_crop
from petra_graph.planning.check_spec import check_spec
from petra_graph.planning.network import MeasuredNetwork, measure
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.contract import Plugin
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.loss_and_metric import Scale, reads_logits
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
from petra_graph.training.trained_network import Network, as_stored
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
        except (TypeError, ValueError) as error:
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
    network, source = run.load(which)
    spec, checked, trained = run.spec, run.network.checked, run.trained
    if any(keys[0] == "data" or keys == ("run", "seed") for keys in run.changed_keys):
        trained = None  # other samples are meant, or others were held back
    # The training's samples, with which these are compared, are those that its validation left.
    data = open_data(run, validation=trained is not None or split != "test")
    if (whole := {"train": data.train, "validation": data.validation, "test": data.test}.get(split)) is None:
        hint = "allowed: test, train, and validation where data.validation is set"
        raise SpecError(f"the run has no {split} samples", hint)
    batches, loss = data.evaluation(whole), checked.loss.build()
    network = network.to(device)

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


# --- what a network is asked about, and what it says ---
#
# Files or arrays become samples of the shape and type that the facts of the data set say, or are refused:
#
#     .png .jpg ...   decoded to the network's channels; resized by the shorter side, and cropped at the centre
#     .npy            one sample [*shape], or several [n, *shape], in the data set's own type
#     others          where the data set has `read`

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # PIL's, by channels
_IMAGE = 3  # dimensions of one image


def read_file(file: str, data: Plugin, facts: DataFacts) -> Tensor:
    """Return a file's samples [n, *shape]: an image, arrays, or what the data set reads; SpecError: it has none."""
    path = Path(file).expanduser()
    try:
        path.stat()  # a mistyped name is no fault of the data set's `read`
        if path.suffix.lower() == ".npy":
            return as_samples(np.load(path, allow_pickle=False), file, facts)
        if hasattr(data.code, "read"):
            return as_samples(data.ask("read", path), file, facts)
        # Floats are images where the data set itself makes them of images, from 0 to 1.
        images = not facts.several_inputs and len(facts.shape) == _IMAGE and facts.shape[0] in _MODES
        floats = images and facts.dtype == "float32" and hasattr(data.code, "of_images") and data.ask("of_images")
        if path.suffix.lower() not in SUFFIXES or not images or not (facts.dtype == "uint8" or floats):
            hint = f"the network reads {facts.dtype} {facts.shape}: give arrays (.npy), made as the data set makes them"
            raise SpecError(f"{file} is no sample of {data}, whose class may have a static method `read`", hint)
        channels, height, width = facts.shape
        picture = decode(path, _MODES[channels])
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} cannot be read: {error}") from None
    if picture.size != (width, height):
        scale = max(height / picture.height, width / picture.width)
        resized = max(width, round(picture.width * scale)), max(height, round(picture.height * scale))
        picture = resize_and_crop(picture, resized, (width, height))
    pixels = torch.from_numpy(np.array(picture)).view(1, height, width, channels).permute(0, 3, 1, 2)
    return pixels.contiguous().float() / 255 if floats else pixels


def as_samples(values: Any, name: str, facts: DataFacts) -> Tensor:
    """Return an array or a tensor of one sample or several as samples [n, *shape]; SpecError, which names them: the network does not read them."""
    if facts.several_inputs:
        raise SpecError("the network reads several inputs", "call petra_graph.load(RUN) with a dictionary of them")
    try:
        tensor = as_stored(torch.as_tensor(values).detach().cpu(), facts.dtype)
    except TypeError as error:
        raise SpecError(f"{name}: {error}") from None
    if tuple(tensor.shape) == facts.shape:
        return tensor.unsqueeze(0)
    if tuple(tensor.shape[1:]) != facts.shape or not len(tensor):
        hint = "give one sample, or several with their number before the shape"
        raise SpecError(f"{name} has {list(tensor.shape)}, and the network reads {list(facts.shape)}", hint)
    return tensor


class ClassScore(NamedTuple):
    """One class for one sample; the score is a probability where the loss reads the outputs as logits, else the network's output."""

    number: int
    name: str | None
    score: float


@frozen(kw_only=True)
class Prediction:
    """The prediction for one sample."""

    file: str
    index: int  # of the sample in its file
    best: tuple[ClassScore, ...] = ()  # the largest score first; () where a sample's target is not one class
    probable: bool = False  # whether scores are probabilities
    output: tuple[float, ...] = ()  # what the network returns, flattened

    def record(self) -> dict[str, Any]:
        """Return it as JSON."""
        classes = [{"class": at, **({"name": name} if name else {}), "score": score} for at, name, score in self.best]
        said = {"classes": classes} if classes else {"output": list(self.output)}
        return {"file": self.file, "index": self.index, **said}


def predict_samples(
    run: SavedRun, network: Network, files: Sequence[tuple[str, Tensor]], *, top: int = 3, device: str = "cpu"
) -> list[Prediction]:
    """Predict samples, by the names of their files, with the `top` classes of each."""
    found, size, facts, names = list[Prediction](), run.spec.data.test_batch, run.facts, run.facts.class_names
    # Logits have a softmax, which is a probability; an output [n, classes] is of one class a sample.
    probable = facts.classes is not None and reads_logits(run.network.checked.loss)
    shape = run.network.shapes[run.network.graph.head].outputs[0]
    top = min(top, shape[0]) if facts.classes is not None and not facts.target_shape and len(shape) == 1 else 0
    places = [(name, index) for name, values in files for index in range(len(values))]
    network, whole = network.to(device), torch.cat([values for _, values in files])
    for start in range(0, len(whole), size):
        with torch.no_grad():
            outputs = main(network(whole[start : start + size].to(device))).cpu()
        scored = outputs.float().softmax(dim=1) if probable else outputs
        for output, scores, (file, index) in zip(outputs, scored, places[start : start + size], strict=True):
            best = list[ClassScore]()
            if top:
                values, classes = scores.topk(top)
                pairs = zip(classes.tolist(), values.tolist(), strict=True)
                best = [ClassScore(at, names[at] if names else None, value) for at, value in pairs]
            flat = tuple(output.flatten().tolist())
            found.append(Prediction(file=file, index=index, best=tuple(best), probable=probable, output=flat))
    return found


def continued_text(
    run: SavedRun, network: Network, *, prompt: str = "\n", tokens: int = 200, device: str = "cpu", **drawing: Any
) -> str:
    """Return the prompt and the text that follows it; the same `drawing`, as of `draw_tokens`, gives the same text on the same device.

    Raises SpecError: the run was not trained on text with a target for each token, or some of the prompt has no token.
    """
    data, facts = run.network.checked.data, run.facts
    if not hasattr(data.code, "codec") or not facts.of_tokens:
        message = f"{data} does not say how a text becomes tokens, or has no target for each of them"
        raise SpecError(message, "use a run that was trained on windows of tokens, with the next token as the target")
    codec = data.ask("codec", facts)
    with author_code(f"{data.owned} cannot encode the prompt"):
        given = list(codec.encode(prompt))
    network = network.to(device)
    drawn = draw_tokens(lambda window: main(network(window.to(device))), given, tokens, facts.shape[0], **drawing)
    with author_code(f"{data.owned} cannot decode tokens"):
        return str(codec.decode(drawn))


@torch.no_grad()
def draw_tokens(
    network: Callable[[Tensor], Tensor],
    prompt: Sequence[int],
    tokens: int,
    context: int,
    *,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Return the prompt's tokens, at least one, and as many more; the draws move no global generator.

    The network gives the logits [1, classes, t] of at most `context` tokens [1, t]. Each token is computed from the whole window before it: to
    keep what attention has computed would need a block's own code. `temperature` divides the logits; at 0 the likeliest token is taken.
    """
    generator = torch.Generator().manual_seed(seed)
    found = list(prompt)
    for _ in range(tokens):
        logits = network(torch.tensor([found[-context:]]))[0, :, -1].double().cpu()
        if top_k is not None and top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
        if temperature:
            shares = (logits / temperature).softmax(dim=0)
            found.append(int(shares.multinomial(1, generator=generator)))
        else:
            found.append(int(logits.argmax()))
    return found
