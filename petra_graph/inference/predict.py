"""What a saved run's network says: classes with their probabilities, plain outputs, a file for each sample, or a text continued.

    png    a class for each pixel: the class's number, in the colours of Pascal VOC; a value for each pixel: grey, or red, green and blue
    npy    any output: probabilities of the classes where the loss reads outputs as logits, else what the network returns

Decision: values are written to images as they are, 0 as black and 1 as white, since images that were brightened each by itself could
not be compared; values outside are clipped, and the note says how many.

Decision: each token of a text is computed from the whole window before it. Keeping what attention has computed would need a block's own code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from attrs import frozen
from PIL import Image
from torch import Tensor

from petra_graph.errors import SpecError
from petra_graph.inference.samples import Samples
from petra_graph.inference.saved_run import SavedRun
from petra_graph.inference.trained_network import Network, computing_on
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.data_set import codec_of
from petra_graph.plugins.tensor_trees import Tree, main, mapped
from petra_graph.record.run_directory import make_folder_of, write_whole

FileForm = Literal["png", "npy"]
_COLOURS = 256
"""The classes that an image with a palette can tell apart."""
_MAP = 2


@frozen(kw_only=True)
class ClassScore:
    """One class for one sample."""

    number: int
    name: str | None
    score: float
    """Its probability where the loss reads the outputs as logits, else the network's output."""


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
    output: tuple[float, ...] = ()
    """What the network returns, flattened; () where it is in a file."""
    note: str = ""
    """What was done to the file's samples."""
    written: Path | None = None
    """The file that the prediction is in, if it has one of its own."""

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = {"file": self.file, "index": self.index}
        if self.position:
            found["position"] = list(self.position)
        if self.best:
            found["classes"] = [
                {"class": one.number, **({} if one.name is None else {"name": one.name}), "score": one.score}
                for one in self.best
            ]
        else:
            found["output"] = list(self.output)
        return found | ({"note": self.note} if self.note else {})


def predict_samples(
    run: SavedRun,
    network: Network,
    samples: list[Samples],
    *,
    top: int = 3,
    device: str = "cpu",
    summed_up: bool = False,
) -> list[Prediction]:
    """Predict samples, with the `top` classes of each; where a sample has a class at each of several positions, each is a prediction.

    Where a class map is `summed_up`, a prediction has the shares of the classes, one for each sample.
    """
    facts, of_classes, found = run.facts, run.gives_classes, []
    for file, index, output, scores in _score(run, network, samples, device):
        about = partial(Prediction, file=file.name, index=index, note=file.note)
        if summed_up and of_classes and len(facts.target_shape) == _MAP:
            found.append(about(best=_class_shares(run, scores.argmax(dim=0), top)))
            continue
        for position in np.ndindex(*facts.target_shape if of_classes else ()):
            there = (slice(None), *position) if of_classes else ()
            best = _best_classes(scores[there], facts.class_names, top) if of_classes else ()
            found.append(about(position=position, best=best, output=tuple(output[there].flatten().tolist())))
    return found


def write_predictions(
    run: SavedRun,
    network: Network,
    samples: list[Samples],
    folder: Path,
    form: FileForm,
    *,
    top: int = 3,
    device: str = "cpu",
) -> list[Prediction]:
    """Write the prediction for each sample to `folder`, under the sample's own name; that of its n-th in a file ends in -n.

    For a single sample, `folder` may be the file to write, with the suffix of the form.
    """
    if form == "png":
        _expect_images(run)
    targets, found = _name_files(samples, folder, form), []
    scored = _score(run, network, samples, device)
    for target, (file, index, _, scores) in zip(targets, scored, strict=True):
        best: tuple[ClassScore, ...] = ()
        note = ""
        make_folder_of(target)
        if form == "npy":
            write_whole(target, partial(_save_array, values=scores.numpy()))
        else:
            image, best, note = _draw(run, scores, top)
            write_whole(target, partial(image.save, format="PNG"))
        notes = ", ".join(filter(None, [file.note, note]))
        found.append(Prediction(file=file.name, index=index, best=best, note=notes, written=target))
    return found


def _score(
    run: SavedRun, network: Network, samples: list[Samples], device: str
) -> Iterator[tuple[Samples, int, Tensor, Tensor]]:
    """Yield for each sample its file, its index there, the network's output, and that as probabilities where it is logits."""
    parts = [one.values for one in samples]
    several = isinstance(parts[0], dict)
    values: Tree = {name: torch.cat([one[name] for one in parts]) for name in parts[0]} if several else torch.cat(parts)
    places = ((file, index) for file in samples for index in range(len(main(file.values))))
    size = run.spec.data.test_batch
    with computing_on(network, device):
        for start in range(0, len(main(values)), size):
            part = mapped(operator.itemgetter(slice(start, start + size)), values)
            outputs = main(network(mapped(operator.methodcaller("to", device), part))).cpu()
            scores = outputs.float().softmax(dim=1) if run.gives_logits else outputs
            for output, score in zip(outputs, scores, strict=True):
                yield *next(places), output, score


def _best_classes(scores: Tensor, names: Sequence[str] | None, top: int) -> tuple[ClassScore, ...]:
    values, numbers = scores.topk(min(top, len(scores)))
    pairs = zip(numbers.tolist(), values.tolist(), strict=True)
    return tuple(ClassScore(number=at, name=names[at] if names else None, score=value) for at, value in pairs)


def _class_shares(run: SavedRun, classes: Tensor, top: int) -> tuple[ClassScore, ...]:
    """Return the most frequent classes of a map, with their shares of its pixels."""
    shares = classes.flatten().bincount(minlength=run.output_shape[0]) / classes.numel()
    return tuple(one for one in _best_classes(shares, run.facts.class_names, top) if one.score)


def _expect_images(run: SavedRun) -> None:
    """Refuse outputs that are no images."""
    shape, classes, fault = run.output_shape, run.facts.classes or 0, ""
    if not run.gives_classes:
        grey, colours = len(shape) == _MAP, len(shape) == _MAP + 1 and shape[0] in {1, 3}
        fault = "" if grey or colours else f"outputs {list(shape)}"
    elif len(shape) != _MAP + 1:
        fault = f"a class for each of {list(shape[1:])}" if shape[1:] else "a class"
    elif classes > _COLOURS:
        fault = f"{classes} classes for each pixel, where an image has {_COLOURS} colours"
    if fault:
        raise SpecError(
            f"the network's predictions are not images: a sample gets {fault}",
            "write arrays with --format npy, or JSON",
        )


def _name_files(samples: list[Samples], folder: Path, form: str) -> list[Path]:
    """Return the file of each sample's prediction."""
    targets = []
    for one in samples:
        count = len(main(one.values))
        names = (f"{one.place.stem}-{index}" if count > 1 else one.place.stem for index in range(count))
        targets += [folder / one.place.with_name(f"{name}.{form}") for name in names]
    if folder.suffix == f".{form}" and not folder.is_dir():
        if len(targets) > 1:
            raise SpecError(f"{folder} is one file, and there are several samples", "name a folder")
        targets = [folder]
    read = {Path(one.name).expanduser().resolve() for one in samples}
    for at, target in enumerate(targets):
        if target in targets[:at]:
            message = f"several samples would have their prediction in {target}"
            raise SpecError(message, "give the folder that both are in, or rename one")
        if target.resolve() in read:
            raise SpecError(f"a prediction would replace a file that is read, {target}", "name another folder")
    return targets


def _save_array(path: Path, values: Any) -> None:
    with path.open("wb") as file:  # numpy would add the suffix .npy to a name
        np.save(file, values)


def _draw(run: SavedRun, scores: Tensor, top: int) -> tuple[Image.Image, tuple[ClassScore, ...], str]:
    """Return a prediction as an image, the shares of its most frequent classes, and what was done to its values."""
    if run.gives_classes:
        classes = scores.argmax(dim=0)
        image = Image.fromarray(classes.byte().numpy())
        # Pascal VOC's red, green and blue are every third bit of the class's number.
        bits = [(number, channel) for number in range(_COLOURS) for channel in range(3)]
        image.putpalette([sum((n >> (3 * bit + c) & 1) << (7 - bit) for bit in range(3)) for n, c in bits])
        return image, _class_shares(run, classes, top), ""
    values = scores.float()
    outside = 1 - float(((values >= 0) & (values <= 1)).float().mean())
    pixels = (values.nan_to_num().clamp(0, 1) * 255).round().byte()
    if pixels.dim() > _MAP:
        pixels = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous()
    note = f"{outside:.1%} of the values are outside 0 .. 1, and clipped" if outside else ""
    return Image.fromarray(pixels.numpy()), (), note


def continued_text(
    run: SavedRun, network: Network, *, prompt: str = "\n", tokens: int = 200, device: str = "cpu", **drawing: Any
) -> str:
    """Return the prompt and the text that follows it. The same options and seed give the same text on the same device.

    Args:
        network: of the run, in evaluation mode.
        prompt: text to continue.
        tokens: the length of the continuation.
        drawing: `temperature`, `top_k` and `seed`, as of `draw_tokens`.

    Raises:
        SpecError: the run was not trained on text with a target for each token, or some of the prompt has no token.
        RunFailed: the network cannot be run.
    """
    data, facts = run.network.checked.data, run.facts
    codec = codec_of(data.plugin, data.options, facts)
    if not facts.of_tokens:
        came = f"{facts.dtype} {list(facts.shape)} with targets {list(facts.target_shape)}"
        raise SpecError(
            f"the run's network does not continue a text: its samples are {came}",
            "use a run that was trained on windows of tokens, with the next token as the target of each",
        )
    with author_code(f"{data.plugin.owned} cannot encode the prompt"):
        given = list(codec.encode(prompt))
    with computing_on(network, device):
        drawn = draw_tokens(
            lambda window: main(network(window.to(device))), given, tokens, context=facts.shape[0], **drawing
        )
    with author_code(f"{data.plugin.owned} cannot decode tokens"):
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
    """Return the prompt's tokens and as many more; the draws move no global generator.

    Args:
        network: tokens, int64 [1, t], to logits [1, classes, t].
        prompt: at least one token.
        tokens: how many are drawn.
        context: the largest t.
        temperature: divides the logits; 0: always the likeliest token.
        top_k: draw from this many of the likeliest tokens; None: from all.
        seed: of the draws.
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
