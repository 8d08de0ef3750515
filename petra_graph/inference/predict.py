"""What a run's network says: classes with their probabilities, plain outputs, an image for each sample, or a text continued.

Decision: values are written to images as they are, 0 as black and 1 as white, since images that were brightened each by itself could
not be compared; values outside are clipped, and the note says how many.

Decision: each token of a text is computed from the whole window before it. Keeping what attention has computed would need a block's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_map

from petra_graph.errors import SpecError
from petra_graph.inference.samples import Samples
from petra_graph.inference.saved_run import SavedRun
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.data_set import TextCodec
from petra_graph.plugins.tensor_trees import Tree, main, mapped
from petra_graph.record.run_directory import make_folder_of, write_whole
from petra_graph.training.trained_network import Network, computing_on

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
    probable: bool = False
    """Scores are probabilities, or shares."""
    output: tuple[float, ...] = ()
    """What the network returns, flattened; () where it is in a file."""
    note: str = ""
    """What was done to the file's samples."""
    written: Path | None = None
    """The image that the prediction is in, if it has one."""

    def record(self) -> dict[str, Any]:
        """Return it as JSON."""
        found: dict[str, Any] = {"file": self.file, "index": self.index}
        if self.position:
            found["position"] = list(self.position)
        if self.best:
            found["classes"] = [
                {"class": one.number, **({"name": one.name} if one.name else {}), "score": one.score}
                for one in self.best
            ]
        else:
            found["output"] = list(self.output)
        return found | ({"note": self.note} if self.note else {})


def predict_samples(
    run: SavedRun,
    network: Network,
    samples: Sequence[Samples],
    *,
    top: int = 3,
    device: str = "cpu",
    folder: Path | None = None,
) -> list[Prediction]:
    """Predict samples, with the `top` classes of each; where a sample has a class at each of several positions, each is a prediction.

    Of a map of classes a prediction has their shares of its pixels. With a `folder`, the predictions are written there as images.
    """
    facts, found, size = run.facts, list[Prediction](), run.spec.data.test_batch
    targets = iter([] if folder is None else _name_images(run, samples, folder))
    places = ((file, index) for file in samples for index in range(len(main(file.values))))
    values: Tree = tree_map(lambda *parts: torch.cat(parts), *(one.values for one in samples))

    def best_of(scores: Tensor) -> tuple[ClassScore, ...]:
        best, names = scores.topk(min(top, len(scores))), facts.class_names
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(ClassScore(number=at, name=names[at] if names else None, score=value) for at, value in pairs)

    def outputs() -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the network's output for each sample, and that as probabilities where it is logits."""
        for start in range(0, len(main(values)), size):
            part = mapped(lambda one: one[start : start + size].to(device), values)  # noqa: B023  it is called at once
            output = main(network(part)).cpu()
            yield from zip(output, output.float().softmax(dim=1) if run.gives_logits else output, strict=True)

    with computing_on(network, device):
        for (file, index), (output, scores) in zip(places, outputs(), strict=True):
            about = Prediction(file=file.name, index=index, note=file.note, probable=run.gives_logits)
            if is_map := run.gives_classes and len(facts.target_shape) == _MAP:
                classes = scores.argmax(dim=0).flatten()
                shares = classes.bincount(minlength=len(scores)) / len(classes)
                about = evolve(about, best=tuple(one for one in best_of(shares) if one.score), probable=True)
            if folder is not None:
                found.append(_write_image(about, next(targets), scores, of_classes=is_map))
            elif is_map:
                found.append(about)
            elif not run.gives_classes:
                found.append(evolve(about, output=tuple(output.flatten().tolist())))
            else:
                for position in np.ndindex(*facts.target_shape):
                    at = (slice(None), *position)
                    values_there = tuple(output[at].tolist())
                    found.append(evolve(about, position=position, best=best_of(scores[at]), output=values_there))
    return found


# --- images ---


def _name_images(run: SavedRun, samples: Sequence[Samples], folder: Path) -> list[Path]:
    """Return the file of each sample's image, in a folder by the sample's own name; that of its n-th in a file ends in -n.

    Raises:
        SpecError: predictions are no images, or two would be in one file, or one in a file that is read.
    """
    shape, of_classes = run.output_shape, run.gives_classes
    in_colour = not of_classes and len(shape) == _MAP + 1 and shape[0] in {1, 3}
    if not (len(shape) - of_classes == _MAP or in_colour) or (run.facts.classes or 0) > _COLOURS:
        reason = f"the network's predictions are not images: a sample gets {list(shape)}"
        raise SpecError(reason, "leave out --output, and give --json")
    targets, read = list[Path](), {Path(one.name).expanduser().resolve() for one in samples}
    for one in samples:
        count = len(main(one.values))
        for ending in [f"-{index}" for index in range(count)] if count > 1 else [""]:
            target = folder / one.place.with_name(f"{one.place.stem}{ending}.png")
            if target in targets or target.resolve() in read:
                other = "that of another sample" if target in targets else "a file that is read"
                raise SpecError(f"a prediction would replace {other}, {target}", "name another folder, or rename one")
            targets.append(target)
    return targets


def _write_image(about: Prediction, target: Path, scores: Tensor, *, of_classes: bool) -> Prediction:
    """Write a class for each pixel as its number, in the colours of Pascal VOC; a value for each as grey, or red, green and blue."""
    note = about.note
    if of_classes:
        image = Image.fromarray(scores.argmax(dim=0).byte().numpy())
        # Red, green and blue are every third bit of the class's number.
        bits = [(number, channel) for number in range(_COLOURS) for channel in range(3)]
        image.putpalette([sum((n >> (3 * bit + c) & 1) << (7 - bit) for bit in range(3)) for n, c in bits])
    else:
        values = scores.float()
        outside = 1 - float(((values >= 0) & (values <= 1)).float().mean())
        pixels = (values.nan_to_num().clamp(0, 1) * 255).round().byte()
        if pixels.dim() > _MAP:
            pixels = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous()
        image = Image.fromarray(pixels.numpy())
        clipped = f"{outside:.1%} of the values are outside 0 .. 1, and clipped" if outside else ""
        note = ", ".join(filter(None, [note, clipped]))
    make_folder_of(target)
    write_whole(target, partial(image.save, format="PNG"))
    return evolve(about, note=note, written=target)


# --- texts ---


def continued_text(
    run: SavedRun, network: Network, *, prompt: str = "\n", tokens: int = 200, device: str = "cpu", **drawing: Any
) -> str:
    """Return the prompt and the text that follows it. The same options and seed give the same text on the same device.

    Args:
        network: of the run, in evaluation mode.
        drawing: `temperature`, `top_k` and `seed`, as of `draw_tokens`.

    Raises:
        SpecError: the run was not trained on text with a target for each token, or some of the prompt has no token.
    """
    data, facts = run.network.checked.data, run.facts
    if not hasattr(data.code, "codec"):
        message = f"{data} is not text: it does not say how a text becomes tokens"
        raise SpecError(message, "use a run of a network that was trained on text")
    codec: TextCodec = data.ask("codec", facts)
    if not facts.of_tokens:
        came = f"{facts.dtype} {list(facts.shape)} with targets {list(facts.target_shape)}"
        raise SpecError(
            f"the run's network does not continue a text: its samples are {came}",
            "use a run that was trained on windows of tokens, with the next token as the target of each",
        )
    with author_code(f"{data.owned} cannot encode the prompt"):
        given = list(codec.encode(prompt))
    with computing_on(network, device):
        drawn = draw_tokens(
            lambda window: main(network(window.to(device))), given, tokens, context=facts.shape[0], **drawing
        )
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
