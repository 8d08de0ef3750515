"""What a network is asked about, and what it says: classes with their probabilities, plain outputs, or a text continued.

Files or arrays become samples of the shape and type that the facts of the data set say, or are refused:

.png .jpg ...   decoded to the network's channels; resized by the shorter side, and cropped at the centre
.npy            one sample [*shape], or several [n, *shape], in the data set's own type
.npz            the same for a network of several inputs: an array for each, by its name
others          where the data set has `read`
a folder        all files in it and below it, in the order of their names; hidden ones are left out

Decision: each token of a text is computed from the whole window before it. Keeping what attention has computed would need a block's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor
from torch.utils._pytree import tree_map

from petra_graph.errors import Problem, RunFailed, SpecError
from petra_graph.image_files import SUFFIXES, decode, resize_and_crop, visible_files
from petra_graph.inference.saved_run import SavedRun
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.contract import Plugin
from petra_graph.plugins.data_set import DataFacts, TextCodec
from petra_graph.plugins.tensor_trees import Tree, main, mapped
from petra_graph.training.trained_network import Network, as_stored, computing_on

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""PIL's modes by channels."""
_IMAGE, _MAP = 3, 2
"""The dimensions of one image, and of targets that are a class for each pixel."""


# --- samples ---


@frozen(kw_only=True)
class Samples:
    """The samples of one file."""

    name: str
    """The file, as the user gave it, or below the folder that the user gave."""
    values: Tree
    """[n, *shape], in the data set's type; several inputs are in a dictionary."""
    note: str = ""
    """What was done to them."""


def read_samples(files: Sequence[str], data: Plugin, facts: DataFacts) -> list[Samples]:
    """Read files: images, arrays, or what the data set reads; or folders of them. Raises SpecError: files cannot be read as samples; all of them."""
    found, problems = list[Samples](), list[Problem]()

    @contextmanager
    def collecting(file: str) -> Iterator[None]:
        """Add why a file cannot be read to the problems."""
        try:
            yield
        except (SpecError, RunFailed) as error:
            problems.extend(error.problems)
        except (OSError, ValueError, SyntaxError, MemoryError) as error:
            named, reason = getattr(error, "filename", None), getattr(error, "strerror", None)
            problems.append(Problem(message=f"{named or file} cannot be read: {reason or error}"))

    for given in files:
        with collecting(given):
            folder = Path(given).expanduser()
            below = sorted(Path(one).relative_to(folder) for one in visible_files(folder)) if folder.is_dir() else []
            for file in [str(Path(given, one)) for one in below] or [given]:
                with collecting(file):
                    values, note = _read_file(file, data, facts)
                    found.append(Samples(name=file, values=values, note=note))
    if problems:
        raise SpecError(problems)
    return found


def _read_file(file: str, data: Plugin, facts: DataFacts) -> tuple[Tree, str]:
    """Return a file's samples, and what was done to them."""
    path = Path(file).expanduser()
    suffix = path.suffix.lower()
    if not path.is_file():
        missing = f"the folder {file} has no files" if path.is_dir() else f"there is no file {file}"
        raise SpecError(missing, "give images, arrays (.npy; .npz for several inputs), or what the data set reads")
    if suffix in {".npy", ".npz"}:
        loaded = np.load(path, allow_pickle=False)
        return as_samples(loaded if suffix == ".npy" else dict(loaded), file, facts), ""
    if hasattr(data.code, "read"):
        return as_samples(data.ask("read", path), file, facts), ""
    if suffix not in SUFFIXES:
        reason = f"{file} is neither an image nor an array (.npy), and {data} does not say how it is read"
        raise SpecError(reason, "its class may have a static method `read`")
    # Floats are images where the data set itself makes them of images, from 0 to 1.
    images = not facts.several_inputs and len(facts.shape) == _IMAGE and facts.shape[0] in _MODES
    floats = images and facts.dtype == "float32" and hasattr(data.code, "of_images") and data.ask("of_images")
    if not images or not (facts.dtype == "uint8" or floats):
        reason = f"{file} is an image, and the network reads {facts.dtype} {list(facts.shape)}"
        raise SpecError(reason, "give arrays (.npy; .npz for several inputs), made as the data set makes its samples")
    channels, height, width = facts.shape
    picture, note = decode(path, _MODES[channels]), ""
    if picture.size != (width, height):
        note = f"resized and cropped from {picture.width} x {picture.height}"
        scale = max(height / picture.height, width / picture.width)
        resized = max(width, round(picture.width * scale)), max(height, round(picture.height * scale))
        picture = resize_and_crop(picture, resized, (width, height))
    pixels = torch.from_numpy(np.array(picture)).view(1, height, width, channels).permute(0, 3, 1, 2)
    return (pixels.contiguous().float() / 255 if floats else pixels), note


def as_samples(values: Any, name: str, facts: DataFacts) -> Tree:
    """Return an array or a tensor of one sample or several as samples [n, *shape] in the type that the facts say.

    Of several inputs, it is a dictionary of arrays by their names. `name` is for messages.

    Raises SpecError: the network does not read them.
    """
    if not facts.several_inputs:
        return _as_input(values, name, facts.shape, facts.dtype)
    if not isinstance(values, Mapping) or values.keys() != facts.inputs.keys():
        came = ", ".join(map(str, values)) if isinstance(values, Mapping) else "one array"
        reason = f"{name} has {came}, and the network reads the inputs {', '.join(facts.inputs)}"
        raise SpecError(reason, "give an array for each, by its name")
    found = {key: _as_input(values[key], f"{key} of {name}", *one) for key, one in facts.inputs.items()}
    if len(set(map(len, found.values()))) > 1:
        counts = ", ".join(f"{len(one)} of {key}" for key, one in found.items())
        raise SpecError(f"{name} has {counts}", "give as many samples of each input")
    return found


def _as_input(values: Any, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    if not isinstance(values, Tensor):
        values = np.ascontiguousarray(values)
        if values.dtype.kind not in "biufc":
            raise SpecError(f"{name} has values of type {values.dtype}, and the network reads {dtype}")
        wide = values.dtype.kind == "u" and values.dtype.itemsize > 1  # torch computes little with these
        values = torch.from_numpy(values.astype(np.int64) if wide else values)
    tensor: Tensor = values.detach().cpu()
    came = f"{name} has {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    refusal = f"{came}, and the network reads {dtype} {list(shape)}"
    try:
        tensor = as_stored(tensor, dtype).to(getattr(torch, dtype))
    except ValueError as error:
        raise SpecError(refusal, str(error)) from None
    if tuple(tensor.shape) == shape:
        return tensor.unsqueeze(0)
    if tuple(tensor.shape[1:]) == shape and len(tensor):
        return tensor
    raise SpecError(refusal, "give one sample, or several with their number before the shape")


# --- predictions ---


class ClassScore(NamedTuple):
    """One class for one sample; the score is a probability where the loss reads the outputs as logits, else the network's output."""

    number: int
    name: str | None
    score: float


@frozen(kw_only=True)
class Prediction:
    """The prediction for one sample; where a sample has a target at each of several positions, for one position of it."""

    file: str
    index: int
    """Of the sample in its file."""
    position: tuple[int, ...] = ()
    """In the sample's targets, such as a token's in a text; () where a sample has one target."""
    best: tuple[ClassScore, ...] = ()
    """The classes with the largest scores, the largest first; () where targets are not classes. Of an image: shares of its pixels."""
    probable: bool = False
    """Scores are probabilities, or shares."""
    output: tuple[float, ...] = ()
    """What the network returns, flattened; () for an image of classes."""
    note: str = ""
    """What was done to the file's samples."""

    def record(self) -> dict[str, Any]:
        """Return it as JSON, without what it has not."""
        classes = [
            {"class": number, **({"name": name} if name else {}), "score": score} for number, name, score in self.best
        ]
        said = {"classes": classes} if classes else {"output": list(self.output)}
        more = {"position": list(self.position), **said, "note": self.note}
        return {"file": self.file, "index": self.index, **{key: value for key, value in more.items() if value}}


def predict_samples(
    run: SavedRun, network: Network, samples: Sequence[Samples], *, top: int = 3, device: str = "cpu"
) -> list[Prediction]:
    """Predict samples, with the `top` classes of each; where a sample has a class at each of several positions, each is a prediction.

    Of a class for each pixel, a prediction has the classes' shares of the pixels.
    """
    facts, found, size = run.facts, list[Prediction](), run.spec.data.test_batch
    places = [(file, index) for file in samples for index in range(len(main(file.values)))]
    values: Tree = tree_map(lambda *parts: torch.cat(parts), *(one.values for one in samples))

    def best_of(scores: Tensor) -> tuple[ClassScore, ...]:
        best, names = scores.topk(min(top, len(scores))), facts.class_names
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(ClassScore(at, names[at] if names else None, value) for at, value in pairs)

    with computing_on(network, device):
        for start in range(0, len(main(values)), size):
            part = mapped(lambda one: one[start : start + size].to(device), values)  # noqa: B023  it is called at once
            outputs = main(network(part)).cpu()
            scored = outputs.float().softmax(dim=1) if run.gives_logits else outputs
            for output, scores, (file, index) in zip(outputs, scored, places[start : start + size], strict=True):
                about = Prediction(file=file.name, index=index, note=file.note, probable=run.gives_logits)
                if not run.gives_classes:
                    found.append(evolve(about, output=tuple(output.flatten().tolist())))
                elif len(facts.target_shape) == _MAP:
                    classes = scores.argmax(dim=0).flatten()
                    shares = classes.bincount(minlength=len(scores)) / len(classes)
                    found.append(evolve(about, best=tuple(one for one in best_of(shares) if one.score), probable=True))
                else:
                    for position in np.ndindex(*facts.target_shape):  # one, (), where a sample has one target
                        at = (slice(None), *position)
                        whole = tuple(output[at].tolist())
                        found.append(evolve(about, position=position, best=best_of(scores[at]), output=whole))
    return found


# --- texts ---


def continued_text(
    run: SavedRun, network: Network, *, prompt: str = "\n", tokens: int = 200, device: str = "cpu", **drawing: Any
) -> str:
    """Return the prompt and the text that follows it. The same options and seed give the same text on the same device.

    Args:
        network: of the run, in evaluation mode.
        drawing: `temperature`, `top_k` and `seed`, as of `draw_tokens`.

    Raises SpecError: the run was not trained on text with a target for each token, or some of the prompt has no token.
    """
    data, facts = run.network.checked.data, run.facts
    if not hasattr(data.code, "codec"):
        message = f"{data} is not text: it does not say how a text becomes tokens"
        raise SpecError(message, "use a run of a network that was trained on text")
    codec: TextCodec = data.ask("codec", facts)
    if not facts.of_tokens:
        came = f"{facts.dtype} {list(facts.shape)} with targets {list(facts.target_shape)}"
        message = f"the run's network does not continue a text: its samples are {came}"
        raise SpecError(message, "use a run that was trained on windows of tokens, with the next token as the target")
    with author_code(f"{data.owned} cannot encode the prompt"):
        given = list(codec.encode(prompt))

    def logits_of(window: Tensor) -> Tensor:
        return main(network(window.to(device)))

    with computing_on(network, device):
        drawn = draw_tokens(logits_of, given, tokens, context=facts.shape[0], **drawing)
    with author_code(f"{data.owned} cannot decode tokens"):
        return codec.decode(drawn)


def draw_tokens(
    network: Callable[[Tensor], Tensor],
    prompt: Sequence[int],
    tokens: int,
    *,
    context: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Return the prompt's tokens, at least one, and as many more; the draws move no global generator.

    Args:
        network: tokens, int64 [1, t], to logits [1, classes, t].
        context: the largest t.
        temperature: divides the logits; 0: always the likeliest token.
        top_k: draw from this many of the likeliest tokens; None: from all.
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
